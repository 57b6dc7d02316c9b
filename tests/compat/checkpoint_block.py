"""How long torch.save blocks a step: the peer of tests/bench/checkpoint_block.cpp, the same model. One line of JSON."""

import argparse
import json
import os
import statistics
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--folder", required=True)
parser.add_argument("--megabytes", type=int, default=100)
parser.add_argument("--repetitions", type=int, default=15)
args = parser.parse_args()

model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(args.megabytes // 4)))
times = []
for repetition in range(args.repetitions + 1):
    begun = time.perf_counter()
    torch.save({"model": model.state_dict(), "step": repetition}, os.path.join(args.folder, "checkpoint.pt"))
    times.append((time.perf_counter() - begun) * 1e3)
print(json.dumps({"block_ms": statistics.median(times[1:])}))
