"""Times dist.all_reduce of float32 tensors over shm and over Gloo, turn by turn in one process, as a program in Python
calls it, and what `import ddprun.torch` costs. Run under a launcher, on one machine, with the folder of ddprun.torch on
PYTHONPATH; rank 0 prints one line of JSON:

  {"ranks": 2, "import_ms": 1.2, "median_us": {"shm": {"1000": 5.1, …}, "gloo": {"1000": 110.3, …}}}
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

TURNS = 10
REPETITIONS = {1000: 2000, 55000: 1000, 250000: 400, 2800000: 60}


def measure(group, count, repetitions):
    tensor = torch.full((count,), 1.0)
    times = []
    for i in range(-max(1, repetitions // 10), repetitions):
        begun = time.perf_counter_ns()
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
        if i >= 0:
            times.append((time.perf_counter_ns() - begun) / 1e3)
    if tensor[count // 2].item() != 1:
        raise SystemExit("the sum is wrong")
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=1)
    share = parser.parse_args().share

    begun = time.perf_counter()
    import ddprun.torch  # noqa: F401
    import_ms = (time.perf_counter() - begun) * 1e3
    dist.init_process_group("gloo")
    groups = {"shm": dist.new_group(backend="shm"), "gloo": dist.group.WORLD}
    medians = {name: {} for name in groups}
    for count, repetitions in REPETITIONS.items():
        times = {name: [] for name in groups}
        for turn in range(TURNS):
            for name in list(groups)[::1 if turn % 2 == 0 else -1]:
                dist.barrier()
                times[name] += measure(groups[name], count, max(1, round(repetitions * share / TURNS)))
        for name in groups:
            medians[name][str(count)] = statistics.median(times[name])
    if dist.get_rank() == 0:
        print(json.dumps({"ranks": dist.get_world_size(), "import_ms": import_ms, "median_us": medians}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
