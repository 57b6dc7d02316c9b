import os
import sys
if os.environ["RANK"] == "0":
    import registers
import torch
print(torch.__name__, "registers" in sys.modules, flush=True)
child = os.fork()
if child == 0:
    sys.exit()  # the functions run here, as they do at the end of the program
print(os.waitpid(child, 0)[1], flush=True)

import said
said.end()
os._exit(0)
