"""The steps of torch.optim's optimizers: the peer of tests/bench/optim_step.cpp, line by line. One line of JSON each."""

import argparse
import json
import statistics
import time

import torch

LAYERS = 100
WIDTH = 64
WARM_UP = 20
WAYS = {"single": {"foreach": False, "fused": False}, "foreach": {"foreach": True, "fused": False},
        "fused": {"foreach": False, "fused": True}}
OPTIMIZERS = {"SGD": lambda weights, way: torch.optim.SGD(weights, lr=1e-3, momentum=0.9, **way),
              "Adam": lambda weights, way: torch.optim.Adam(weights, **way),
              "AdamW": lambda weights, way: torch.optim.AdamW(weights, **way)}


def parameters():
    torch.manual_seed(1)
    weights = []
    for sizes in [(WIDTH, WIDTH), (WIDTH,)] * LAYERS:
        weights.append(torch.nn.Parameter(torch.randn(sizes)))
        weights[-1].grad = torch.randn(sizes)
    return weights


def operators_of(optimizer):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    return sum(event.name.startswith("aten::") and (event.cpu_parent is None
                                                    or event.cpu_parent.name.startswith("Optimizer.step"))
               for event in profile.events())


def measure(name, way, steps):
    weights = parameters()
    optimizer = OPTIMIZERS[name](weights, WAYS[way])
    for _ in range(WARM_UP):
        optimizer.step()
    operators = operators_of(optimizer)
    times = []
    for _ in range(steps):
        begun = time.perf_counter()
        optimizer.step()
        times.append((time.perf_counter() - begun) * 1e6)
    print(json.dumps({"optimizer": name, "way": way, "parameters": sum(weight.numel() for weight in weights),
                      "operators": operators, "median_us": statistics.median(times),
                      "sum": sum(weight.sum().item() for weight in weights)}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    for name in OPTIMIZERS:
        for way in WAYS:
            measure(name, way, args.steps)


if __name__ == "__main__":
    main()
