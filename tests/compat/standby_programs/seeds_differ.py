import os
import random
import torch
with open(f"{os.environ['FOLDER']}/drawn-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a") as file:
    file.write(f"{random.getrandbits(64)} {os.urandom(4).hex()}\n")
print(torch.__name__)

import said
said.end()
