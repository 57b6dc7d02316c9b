"""A training as a user writes it, that never ends. Prints when each process reached its first line and its first step.

    round rank pid "line" | "step" nanoseconds of CLOCK_MONOTONIC
"""

import time

BEGUN = time.monotonic_ns()

import os  # noqa: E402

import torch  # noqa: E402
import torch.distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def say(what, when):
    of = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], os.getpid()
    os.write(1, (" ".join(map(str, (*of, what, when))) + "\n").encode())


torch.distributed.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)))
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while True:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.randn(32, 256)), torch.randint(0, 10, (32,))).backward()
    optimizer.step()
    step += 1
    if step == 1:
        say("line", BEGUN)
        say("step", time.monotonic_ns())
    time.sleep(0.01)
