import os
import locked
import torch
# If it were one lock for all, the second rank would wait for ever.
print(locked.lock.acquire(timeout=5), torch.__name__, os.environ["WORLD_SIZE"])

import said
said.end()
