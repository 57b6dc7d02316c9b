import reader
import torch
print(reader.RANK, torch.__name__)

import said
said.end()
