import os
import seeded_by_clock
import torch
with open(f"{os.environ['FOLDER']}/drawn-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a") as file:
    file.write(f"{seeded_by_clock.own.random()}\n")
print(torch.__name__)

import said
said.end()
