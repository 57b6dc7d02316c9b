import sys
import torch
print(sys.modules["sitecustomize"].WHO, torch.__name__)

import said
said.end()
