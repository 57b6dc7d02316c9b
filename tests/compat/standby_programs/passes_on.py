import settings_of_posix
import torch
print(settings_of_posix.RANK, torch.__name__)

import said
said.end()
