"""What the Trainer costs beside a loop that does the same by hand."""

import json
import statistics

from benchmarks.programs import BUILD, ddprun_command, run
from benchmarks.table import Row


def bench_trainer(quick):
    """One step of a small MLP, from loss to loss; the two loops take short turns in one process with one model."""
    for workers in (1, 2):
        command = ddprun_command(workers, str(BUILD / "bench/trainer_loop"), "--hidden=256", "--batch-size=64",
                                 "--samples=6400", "--epochs=1", f"--compare={20 if quick else 200}")
        row = Row(f"Trainer's step, {workers} rank{'s' if workers > 1 else ''}, 0.1 M parameters", "ms", digits=3)
        ratios = []
        for _ in range(1 if quick else 3):
            compared = json.loads(run(command).stdout)
            row.add("floor", compared["manual_us"] / 1e3)
            row.add("ddprun", compared["trainer_us"] / 1e3)
            ratios.append(compared["ratio"])
        ratio = statistics.median(ratios)
        row.bar("median of runs ≤ 1.01 × the loop by hand", ratio, ratio <= 1.01)
        yield row
