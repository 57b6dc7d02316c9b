import os
import numbered
import torch
print(numbered.pid == os.getpid(), torch.__name__)

import said
said.end()
