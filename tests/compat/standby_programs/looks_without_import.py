import importlib.util
import os
import sys
print(importlib.util.find_spec("torch") is not None, "torch" in sys.modules)
os.environ["OMP_NUM_THREADS"] = "2"
import torch
print(torch.__name__)

import said
said.end()
