import os
import reads_in_c
import torch
print(reads_in_c.HOME == os.environb[b"HOME"], torch.__name__)

import said
said.end()
