import os
import torch
if os.environ["RANK"] == "0":
    import profiled_class  # noqa: F401
print(torch.default_generator.seed(), hasattr(torch.default_generator, "added"))

import said
said.end()
