import sys
import torch
print(sys.stdout.isatty(), sys.stdout.encoding, sys.stderr.errors, torch.__name__)

import said
said.end()
