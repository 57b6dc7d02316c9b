import atexit
import os
import asks_later
print(asks_later.getpid() == os.getpid(), asks_later.getpid is os.getpid, asks_later.register is atexit.register)

import said
said.end()
