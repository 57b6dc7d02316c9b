"""A training step of the worker library beside PyTorch's."""

import json
import statistics
import sys

from benchmarks.programs import BUILD, ROOT, TORCHRUN, ddprun_command, run
from benchmarks.table import Row

TINY = {"tiny_mlp"}  # where the step is overhead: faster is asked for, not as fast


def one_ddp_run(command, share):
    """What each model took, by its name."""
    lines = run([*command, f"--share={share}"]).stdout.splitlines()
    return {model["model"]: model for model in map(json.loads, lines)}


def bench_ddp(quick):
    """One training step, forward to optimizer, on the CPU: the same programs in C++ and in Python."""
    workers = 2
    contestants = [("ddprun", ddprun_command(workers, str(BUILD / "bench/ddp_step"))),
                   ("torchrun", [TORCHRUN, "--standalone", f"--nproc-per-node={workers}",
                                 str(ROOT / "tests/compat/ddp_step.py")])]
    rows, ratios = {}, {}
    for pair in range(1 if quick else 11):
        runs = {name: one_ddp_run(command, 0.3 if quick else 1)
                for name, command in (contestants if pair % 2 == 0 else reversed(contestants))}
        for model, ours in runs["ddprun"].items():
            theirs = runs["torchrun"][model]
            if ours["loss"] != theirs["loss"] or ours["parameters"] != theirs["parameters"]:
                sys.exit(f"bench: the two did not do the same work: {ours} {theirs}")
            row = rows.setdefault(
                model, Row(f"DDP step, {workers} ranks, {model}, {ours['parameters'] / 1e6:.2g} M parameters", "ms",
                           digits=3))
            for name in runs:
                row.add(name, runs[name][model]["median_us"] / 1e3)
            ratios.setdefault(model, []).append(ours["median_us"] / theirs["median_us"])
    for model, row in rows.items():
        ratio = statistics.median(ratios[model])
        if model in TINY:
            row.bar("median of pairs < PyTorch's", ratio, ratio < 1)
        else:
            row.bar("median of pairs ≤ 1.03 × PyTorch's", ratio, ratio <= 1.03)
        yield row
