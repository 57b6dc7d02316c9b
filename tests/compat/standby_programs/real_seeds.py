import os
import random
import numpy
os.environ["PACKAGES"] += "/elsewhere"  # tqdm looks at all variables, for its own
import torch
from sympy import Dummy
drawn = random.random(), numpy.random.rand(), torch.rand(1).item(), Dummy._base_dummy_index
with open(f"{os.environ['FOLDER']}/drawn-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a") as file:
    file.write(" ".join(map(str, drawn)) + "\n")
numpy.random.seed(1)
random.seed(1)
torch.manual_seed(1)
print(random.random(), numpy.random.rand(), torch.rand(1).item())

import said
said.end()
