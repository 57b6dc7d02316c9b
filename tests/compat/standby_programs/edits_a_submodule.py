import os
import parts.one
import torch
print(parts.one.VALUE - int(os.environ["TORCHELASTIC_RESTART_COUNT"]), torch.__name__)

import said
said.end()
