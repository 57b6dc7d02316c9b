"""PyTorch's own store server, for comparison: prints its port, ends when stdin closes.

PyTorch looks up the name of every client that connects, on its only server thread. To measure the
server and not the name server, this process gives itself a private /etc/nsswitch.conf that knows files
only (needs root; without it, it says so and goes on).
"""
import ctypes
import datetime
import os
import resource
import sys
import tempfile

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18


def forget_name_servers():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return False
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("hosts: files\n")
    bound = libc.mount(file.name.encode(), b"/etc/nsswitch.conf", None, MS_BIND, None) == 0
    os.unlink(file.name)
    return bound


if not forget_name_servers():
    print("torch_store: cannot keep PyTorch from asking the name server; its figures include that", file=sys.stderr)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

import torch.distributed as dist  # noqa: E402  (after the mount: the resolver reads its file once)

store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=30), wait_for_workers=False,
                      use_libuv=sys.argv[1:] != ["legacy"])
print(store.port, flush=True)
sys.stdin.read()
