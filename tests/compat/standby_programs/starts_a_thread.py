import threading
import starter
import torch
print(threading.active_count(), starter.__name__, torch.__name__)

import said
said.end()
