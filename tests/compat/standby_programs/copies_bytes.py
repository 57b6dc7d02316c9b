import settings_of_bytes
import torch
print(settings_of_bytes.RANK, torch.__name__)

import said
said.end()
