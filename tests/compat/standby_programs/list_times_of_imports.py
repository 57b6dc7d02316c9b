import time
import torch
begun = time.monotonic()
print(time.monotonic() - begun < 60, torch.__name__)

import said
said.end()
