import settings
import torch
print(settings.RANK, settings.ENV["RANK"], torch.__name__)

import said
said.end()
