import os
import temporary
import torch
with open(f"{os.environ['FOLDER']}/drawn-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a") as file:
    file.write(f"{temporary.folder} {temporary.file.name}\n")
os.rmdir(temporary.folder)
print(torch.__name__)

import said
said.end()
