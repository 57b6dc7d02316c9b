import os
import sys
sys.path.insert(0, os.environ["PACKAGES"])
import torch
print(__name__, sys.argv, "__file__" in globals(), torch.__name__)

import said
said.end()
