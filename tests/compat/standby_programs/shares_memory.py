import torch
import with_shared_memory
# Each rank is alone with its memory: what it writes no other one finds.
before = with_shared_memory.memory[:1]
with_shared_memory.memory[:1] = b"1"
print(before, torch.__name__)

import said
said.end()
