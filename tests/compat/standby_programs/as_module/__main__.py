import sys
import torch
from . import value
print(__name__, __package__, __spec__.name, sys.argv[1:], value.VALUE, torch.__name__)

import said
said.end()
