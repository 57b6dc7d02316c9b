import os
import numpy
os.environ["OMP_NUM_THREADS"] = "2"
import torch
print(numpy.__name__, torch.get_num_threads())

import said
said.end()
