import os
import sys
import torch
print(sys.argv, __name__, os.path.basename(__file__), sys.path[0] == os.path.dirname(os.path.abspath(__file__)), torch.__name__)
print(sys.stdout.line_buffering, sys.stdin.read(), sys.flags.isolated, sys.flags.dev_mode, __spec__)

import said
said.end()
