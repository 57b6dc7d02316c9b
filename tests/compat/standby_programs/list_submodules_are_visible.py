import sys
import torch
import torch.utils.data
print(torch.utils.data.__name__, "torch.utils.data" in sys.modules)

import said
said.end()
