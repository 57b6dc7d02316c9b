import os
pid = os.getpid()
