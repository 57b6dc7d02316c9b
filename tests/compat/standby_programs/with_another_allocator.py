import ctypes
import os
import torch
print(ctypes.CDLL(None).mallopt is not None, os.environ.get("LD_PRELOAD"), torch.__name__)

import said
said.end()
