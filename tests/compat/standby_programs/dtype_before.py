import torch
torch.set_default_dtype(torch.float64)
import looker
print(looker.dtype)

import said
said.end()
