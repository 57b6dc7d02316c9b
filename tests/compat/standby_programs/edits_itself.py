import os
import torch
print(int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0, torch.__name__)

import said
said.end()
