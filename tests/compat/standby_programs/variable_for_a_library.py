import os
os.environ["OMP_NUM_THREADS"] = "3"
import torch
print(os.environ["OMP_NUM_THREADS"], torch.__name__)

import said
said.end()
