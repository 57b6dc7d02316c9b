import os
import sys
os.makedirs("elsewhere", exist_ok=True)
sys.path.insert(0, "elsewhere")
import torch
print(torch.__name__, sys.path[0])

import said
said.end()
