import os
import torch
with open("/proc/self/maps") as maps:
    print("libjemalloc" in maps.read(), os.environ["LD_PRELOAD"], bytes(10_000_000) == b"\0" * 10_000_000, torch.__name__)

import said
said.end()
