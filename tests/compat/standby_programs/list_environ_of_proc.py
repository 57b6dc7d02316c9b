import ctypes
import os
import subprocess
import torch
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"RANK"), os.environ["RANK"], subprocess.run(["sh", "-c", "echo $RANK"], stdout=subprocess.PIPE).stdout)
print(subprocess.run(["cat", "/proc/self/environ"], stdout=subprocess.PIPE).stdout.count(b"\0RANK=") == 1, torch.__name__)

import said
said.end()
