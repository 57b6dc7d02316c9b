"""Ends right after its last collective: a thread of Gloo still waits for the interpreter to give back the tensor.

usage: gloo_at_exit.py EXIT_CODE
"""

import atexit
import builtins
import os
import sys
import time

import torch
import torch.distributed as dist


class Pause:
    """Dies when the interpreter is being taken down, and then leaves it to other threads for a while."""

    sleep = staticmethod(time.sleep)

    def __del__(self):
        self.sleep(0.5)


atexit.register(lambda: os.write(1, f"rank {dist.get_rank()} ends as {__name__} {sys.argv[1:]}\n".encode()))
dist.init_process_group("gloo")
builtins.pause = Pause()
sys.setswitchinterval(100)  # this thread keeps the interpreter unless it waits
sum_of_ranks = torch.ones(1000)
for _ in range(20):
    dist.all_reduce(sum_of_ranks)
sys.exit(int(sys.argv[1]))
