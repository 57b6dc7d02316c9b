import os
os.register_at_fork(before=lambda: print("before a fork", flush=True))
