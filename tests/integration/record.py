"""A user's script, unmodified for ddprun: rank 1 fails deep inside of a function that is recorded."""

import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


def parse(text, depth):
    if depth == 0:
        raise ValueError(f"lr must be positive, got {text}")
    convert(text, depth - 1)


def convert(text, depth):
    parse(text, depth)


@record
def main():
    if os.environ["RANK"] == "1":
        parse("-0.1", depth=30)
    time.sleep(1000)


main()
