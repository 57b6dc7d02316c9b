import os
import generator
import torch
with open(f"{os.environ['FOLDER']}/drawn-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a") as file:
    file.write(f"{generator.own.random()} {generator.session}\n")
print(torch.__name__)

import said
said.end()
