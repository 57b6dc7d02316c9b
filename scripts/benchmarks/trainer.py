"""What the Trainer costs beside a loop that does the same by hand."""

import json
import statistics

from benchmarks.programs import BUILD, ddprun_command, run
from benchmarks.table import Row


def bench_trainer(quick):
    """One step of a small MLP; the Trainer's steps and those by hand take turns within one fit()."""
    for backend, workers in (("gloo", 1), ("gloo", 2), ("shm", 2)):
        command = ddprun_command(workers, str(BUILD / "bench/trainer_loop"), "--hidden=256", "--batch-size=64",
                                 "--samples=12800", f"--backend={backend}", f"--compare={50 if quick else 400}")
        name = "1 rank" if workers == 1 else f"{workers} ranks over {backend}"
        row = Row(f"Trainer's step, {name}, 0.1 M parameters", "ms", digits=3)
        ratios = []
        for _ in range(1 if quick else 3):
            compared = json.loads(run(command).stdout)
            row.add("floor", compared["manual_us"] / 1e3)
            row.add("ddprun", compared["trainer_us"] / 1e3)
            ratios.append(compared["ratio"])
        ratio = statistics.median(ratios)
        row.bar("median of runs ≤ 1.01 × the loop by hand", ratio, ratio <= 1.01)
        yield row
