import os
os.environ["MY_OWN"] = "set"
import torch
print(os.environ["MY_OWN"], torch.__name__)

import said
said.end()
