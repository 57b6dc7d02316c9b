"""PyTorch's own store server, for comparison: prints its port, ends when stdin closes."""
import datetime
import resource
import sys

import torch.distributed as dist

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
# Not 127.0.0.1: the store's own client would have the failed look-up, and its server then ask for no name at all.
store = dist.TCPStore("::1", 0, None, True, datetime.timedelta(seconds=30), wait_for_workers=False,
                      use_libuv=sys.argv[1:] != ["legacy"])
print(store.port, flush=True)
sys.stdin.read()
