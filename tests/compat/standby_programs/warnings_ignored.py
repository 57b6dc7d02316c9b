import warnings
warnings.filterwarnings("ignore", message="mine")
import torch
warnings.warn("mine")
print(torch.__name__, [each[0] for each in warnings.filters if each[1] and each[1].pattern == "mine"])

import said
said.end()
