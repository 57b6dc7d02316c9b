"""Runs ddp_cases and its Python twin and compares them: each step's loss on each rank and the final parameters
and buffers, bit for bit.

  python ddp_parity.py --cases build/tests/ddp_cases --launcher build/bin/ddprun
"""

import argparse
import faulthandler
import os
import subprocess
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"  # read by the import of torch
import numpy  # noqa: E402

import ddp_cases  # noqa: E402
from forked import run_twin  # noqa: E402

BACKENDS = {2: ["gloo", "shm"], 3: ["gloo"]}  # of the C++ side, Python's is Gloo; only two summands have one order
EPSILON = 2.0**-24  # the rounding of one operation in float32
STEPS = 6


def read_losses(path):
    losses = {}
    with open(path) as file:
        for line in file:
            case, step, value = line.split()
            losses.setdefault(case, []).append((int(step), float.fromhex(value)))
    return losses


def weights_of(prefix, rank, case):
    with open(f"{prefix}.rank{rank}.{case}", "rb") as file:
        return file.read()


def floats(data):
    return numpy.frombuffer(data, numpy.float32).astype(numpy.float64)


def compare(ours, theirs, our_weights, their_weights):
    """None, or what differs."""
    if len(ours) != len(theirs):
        return f"{len(ours)} steps, Python made {len(theirs)}"
    for (step, value), (_, expected) in zip(ours, theirs):
        if value != expected:
            return f"step {step}: loss {value.hex()}, Python {expected.hex()}"
    if our_weights != their_weights:
        return "the losses are equal, the final weights are not"
    return None


def compare_with_one_rank(run, folder, two_ranks):
    """Two ranks with batches of B and one with 2 B. Sums are made in another order: for a gradient, a mean over 12
    samples of terms below 1, some 12 roundings."""
    prefix = os.path.join(folder, "one")
    run(1, [prefix])
    difference = abs(floats(weights_of(prefix, 0, "whole")) - floats(weights_of(two_ranks, 0, "plain"))).max()
    allowed = STEPS * 0.1 * 12 * EPSILON + STEPS * 2 * EPSILON
    assert 0 < difference <= allowed, f"one rank with 2 B: weights differ by {difference:.3g}, allowed {allowed:.3g}"
    print(f"2 ranks with batch B, 1 rank with 2 B: weights within {difference:.2g} (allowed {allowed:.2g})")


def compare_with_python(args, ranks, folder):
    def run(ranks, command):
        launch = [args.launcher, "--standalone", f"--nproc-per-node={ranks}"]
        if os.path.basename(args.launcher) == "torchrun":
            launch += ["--no-python"]
        subprocess.run([*launch, args.cases, *command], check=True, timeout=300)

    theirs = os.path.join(folder, f"theirs{ranks}")
    run_twin(ranks, ddp_cases.main, theirs)
    for backend in BACKENDS[ranks]:
        ours = os.path.join(folder, f"{backend}{ranks}")
        run(ranks, [ours, backend])
        failures = []
        for rank in range(ranks):
            mine = read_losses(f"{ours}.rank{rank}")
            python = read_losses(f"{theirs}.rank{rank}")
            assert mine.keys() == python.keys() and len(mine) > 20, f"{mine.keys()} != {python.keys()}"
            for case, losses in mine.items():
                difference = compare(losses, python[case], weights_of(ours, rank, case), weights_of(theirs, rank, case))
                if difference is not None:
                    failures.append(f"{case}, rank {rank}, {backend}: {difference}")
        assert not failures, "\n" + "\n".join(failures)
        print(f"{ranks} ranks over {backend}, equal bit for bit: {', '.join(sorted(mine))}")
        if ranks == 2:
            compare_with_one_rank(lambda ranks, arguments: run(ranks, [*arguments, backend]), folder, ours)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", required=True)
    parser.add_argument("--launcher", required=True, help="ddprun or torchrun")
    args = parser.parse_args()
    faulthandler.enable()  # a crash inside of PyTorch, seen once, says where Python was
    with tempfile.TemporaryDirectory() as folder:
        for ranks in BACKENDS:
            compare_with_python(args, ranks, folder)


if __name__ == "__main__":
    main()
