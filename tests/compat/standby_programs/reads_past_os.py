import os
import posix
import settings_of_posix_module
import torch
print(settings_of_posix_module.RANK, posix.environ[b"RANK"] == os.environb[b"RANK"], b"DDPRUN_ZYGOTE_FD" in posix.environ,
      torch.__name__)

import said
said.end()
