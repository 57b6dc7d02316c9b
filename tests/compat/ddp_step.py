"""The Python half of the step-time benchmark: tests/bench/ddp_step.cpp does the same in C++."""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

INPUTS = 784
CLASSES = 10


class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(INPUTS, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo", init_method="env://")
    torch.manual_seed(1)
    model = DistributedDataParallel(Mlp(args.hidden))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    inputs = torch.randn(args.batch_size, INPUTS)
    targets = torch.randint(CLASSES, (args.batch_size,))

    times = []
    for i in range(args.warm_up + args.steps):
        begun = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        passed = time.perf_counter_ns() - begun
        if i >= args.warm_up:
            times.append(passed / 1000)
        last_loss = loss.item()
    if dist.get_rank() == 0:
        print(
            json.dumps(
                {
                    "program": "python",
                    "hidden": args.hidden,
                    "ranks": dist.get_world_size(),
                    "steps": args.steps,
                    "median_us": round(statistics.median(times), 2),
                    "loss": float(f"{last_loss:.9g}"),
                }
            )
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
