"""A training step of the worker library beside PyTorch's."""

import json
import math
import statistics
import sys

from benchmarks.programs import BUILD, PYTHON, ROOT, ddprun_command, run
from benchmarks.table import Row

TINY = {"tiny_mlp"}  # where the step is overhead: faster is asked for, not as fast


def one_ddp_run(command, share):
    """What each model took, by its name."""
    lines = run([*command, f"--share={share}"]).stdout.splitlines()
    return {model["model"]: model for model in map(json.loads, lines)}


def compared_steps(pairs, share, workers, backend, where):
    """A row for each model, and the ratios of its pairs; a `share` of the steps. Equal losses on the CPU; on a GPU, where what is added up in
    which order is the libraries' to choose, near ones."""
    contestants = [("ddprun", ddprun_command(workers, str(BUILD / "bench/ddp_step"))),
                   ("torchrun", [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}",
                                 str(ROOT / "tests/compat/ddp_step.py")])]
    tolerance = 1e-2 if backend == "nccl" else 0
    rows, ratios = {}, {}
    for pair in range(pairs):
        runs = {name: one_ddp_run([*command, f"--backend={backend}"], share)
                for name, command in (contestants if pair % 2 == 0 else reversed(contestants))}
        for model, ours in runs["ddprun"].items():
            theirs = runs["torchrun"][model]
            if (not math.isclose(ours["loss"], theirs["loss"], rel_tol=tolerance, abs_tol=tolerance)
                    or ours["parameters"] != theirs["parameters"]):
                sys.exit(f"bench: the two did not do the same work: {ours} {theirs}")
            ranks = f"{workers} rank{'s' if workers > 1 else ''}{where}"
            row = rows.setdefault(
                model, Row(f"DDP step, {ranks}, {model}, {ours['parameters'] / 1e6:.2g} M parameters", "ms", digits=3))
            for name in runs:
                row.add(name, runs[name][model]["median_us"] / 1e3)
            ratios.setdefault(model, []).append(ours["median_us"] / theirs["median_us"])
    for model, row in rows.items():
        yield model, row, statistics.median(ratios[model])


def how_often(quick):
    """Pairs of runs, and the share of each model's steps."""
    return (1, 0.3) if quick else (11, 1)


def bench_ddp(quick):
    """One training step, forward to optimizer, on the CPU: the same programs in C++ and in Python."""
    for model, row, ratio in compared_steps(*how_often(quick), 2, "gloo", ""):
        if model in TINY:
            row.bar("median of pairs < PyTorch's", ratio, ratio < 1)
        else:
            row.bar("median of pairs ≤ 1.03 × PyTorch's", ratio, ratio <= 1.03)
        yield row


def count_gpus():
    return int(run([str(BUILD / "bin/gpu_smoke"), "--count"]).stdout)


def rows_on_gpus(pairs, share, gpus):
    for _, row, ratio in compared_steps(pairs, share, gpus, "nccl", " over NCCL"):
        row.bar("median of pairs ≤ 0.95 × PyTorch's", ratio, ratio <= 0.95)
        yield row


def bench_gpu(quick):
    """The same on every GPU of this machine, over NCCL; not seen where there is none."""
    gpus = count_gpus()
    if gpus == 0:
        print("bench: a DDP step on a GPU is not seen, because there is no GPU here", file=sys.stderr)
        return
    yield from rows_on_gpus(*how_often(quick), gpus)
