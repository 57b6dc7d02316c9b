"""A user's script, unmodified for ddprun: each rank has children of every kind that Python makes, and waits."""

import multiprocessing
import os
import sys
import time

import torch.multiprocessing


def live(_index, path):
    with open(path, "w"):
        pass
    time.sleep(1000)


def main():
    path = os.path.join(sys.argv[1], os.environ["RANK"] + ".")
    torch.multiprocessing.spawn(live, args=(path + "spawned",), nprocs=1, join=False)
    for daemon in (True, False):
        multiprocessing.Process(target=live, args=(0, path + f"daemon_{daemon}"), daemon=daemon).start()
    time.sleep(1000)


if __name__ == "__main__":
    main()
