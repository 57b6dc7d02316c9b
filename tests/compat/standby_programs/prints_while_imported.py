import torch
print("before", torch.__name__)
import printer
print("after", printer.__name__)

import said
said.end()
