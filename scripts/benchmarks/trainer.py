"""What the Trainer costs beside a loop that does the same by hand."""

import json
import statistics
import subprocess
import sys

from benchmarks.programs import BUILD, ddprun_command, environment
from benchmarks.table import Row


def bench_trainer(quick):
    """One step of a small MLP, from loss to loss; the two loops take turns in one process and must end with one loss.

    On one rank the step is steady to a thousandth. On two ranks that share two cores it is not: the same loop against
    itself differs by a few hundredths from run to run, so there are more and shorter runs.
    """
    for workers, runs, turns in ((1, 5, 11), (2, 15, 5)):
        command = ddprun_command(workers, str(BUILD / "bench/trainer_loop"), "--hidden=256", "--batch-size=64",
                                 "--samples=12800", "--epochs=3", f"--compare={2 if quick else turns}")
        row = Row(f"Trainer's step, {workers} rank{'s' if workers > 1 else ''}, 0.1 M parameters", "ms", digits=3)
        ratios = []
        for _ in range(1 if quick else runs):
            output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=environment())
            if output.returncode != 0:
                sys.exit(f"bench: {' '.join(command)} ended with {output.returncode}:\n{output.stderr}")
            run = json.loads(output.stdout)
            row.add("floor", run["manual_us"] / 1e3)
            row.add("ddprun", run["trainer_us"] / 1e3)
            ratios.append(run["ratio"])
        ratio = statistics.median(ratios)
        row.bar("median of runs ≤ 1.01 × the loop by hand", ratio, ratio <= 1.01)
        yield row
