"""An epoch whose batches are loaded while it trains, beside one whose batches lie ready in memory."""

import json
import statistics

from benchmarks.programs import BUILD, ddprun_command, run
from benchmarks.table import Row


def bench_loader(quick):
    """The floor is the epoch without any loading. On two ranks no core is idle: what is loaded costs its time."""
    program = str(BUILD / "bench/loader_epoch")
    for ranks, options, what in ((1, ["--augment"], "random crops"), (2, [], "bytes to floats")):
        command = ddprun_command(ranks, program, *options, f"--pairs={2 if quick else 11}")
        times = json.loads(run(command).stdout)
        in_line = statistics.median(times["inline_ms"]) / statistics.median(times["without_ms"])
        row = Row(f"epoch of 40 CNN steps, {ranks} rank{'s'[:ranks - 1]}, loading {what} ({in_line:.2f} × when not "
                  "overlapped)", "ms")
        ratios = []
        for without, beside in zip(times["without_ms"], times["with_ms"]):
            row.add("floor", without)
            row.add("ddprun", beside)
            ratios.append(beside / without)
        ratio = statistics.median(ratios)
        row.bar("median of pairs ≤ 1.05 × the epoch without loading", ratio, ratio <= 1.05)
        yield row
