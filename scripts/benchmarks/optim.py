"""A step of the optimizers beside torch.optim's."""

import json
import statistics
import sys

from benchmarks.programs import BUILD, PYTHON, ROOT, run
from benchmarks.table import Row

MOST_OPERATORS = {"foreach": 450, "fused": 3}


def one_run(command, steps):
    lines = run([*command, f"--steps={steps}"]).stdout.splitlines()
    return {(line["optimizer"], line["way"]): line for line in map(json.loads, lines)}


def bench_optim(quick):
    """SGD with momentum, Adam and AdamW over 200 parameters, in each of the three ways; the same sums, to the bit."""
    contestants = [("ddprun", [str(BUILD / "bench/optim_step")]),
                   ("PyTorch", [PYTHON, str(ROOT / "tests/compat/optim_step.py")])]
    rows, operators, ratios = {}, {}, {}
    for pair in range(1 if quick else 11):
        runs = {name: one_run(command, 50 if quick else 500)
                for name, command in (contestants if pair % 2 == 0 else reversed(contestants))}
        for key, ours in runs["ddprun"].items():
            theirs = runs["PyTorch"][key]
            if ours["sum"] != theirs["sum"] or ours["parameters"] != theirs["parameters"]:
                sys.exit(f"bench: the two did not do the same work: {ours} {theirs}")
            what = f"{' '.join(key)}, step over 200 tensors, {ours['parameters'] / 1e6:.2g} M parameters"
            row = rows.setdefault(key, Row(what, "ms", digits=3))
            counted = operators.setdefault(key, Row(f"{' '.join(key)}, operators called by that step", "calls"))
            for name, result in runs.items():
                row.add(name, result[key]["median_us"] / 1e3)
                counted.add(name, result[key]["operators"])
            ratios.setdefault(key, []).append(ours["median_us"] / theirs["median_us"])
    for key, row in rows.items():
        ratio = statistics.median(ratios[key])
        row.bar("median of pairs ≤ 0.95 × PyTorch's", ratio, ratio <= 0.95)
        yield row
    for way, most in MOST_OPERATORS.items():
        row = operators["Adam", way]
        row.bar(f"≤ {most}", row.median("ddprun"), row.median("ddprun") <= most)
        yield row
