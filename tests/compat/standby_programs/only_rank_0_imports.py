import os
import sys
import torch
if os.environ["RANK"] == "0":
    import profiled
print(torch.relu(1), "profiled" in sys.modules)

import said
said.end()
