import os
import sys
sys.path.insert(0, os.environ["PACKAGES"])
import torch
print(sys.flags.isolated, sys.argv[1:], torch.__name__)

import said
said.end()
