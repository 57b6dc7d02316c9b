"""From the start of a training to its first step."""

import os
import pathlib
import re
import tempfile
import time

from benchmarks.programs import BUILD, PYTHON, ROOT, ddprun_command, run, torchrun_command
from benchmarks.store import with_names
from benchmarks.table import Row

WORKERS = 2
BATCH = 16
FIRST_STEP_BAR_MS = 500
JOIN_BAR_MS = 20


def one_start(command, losses):
    """A training of one step: milliseconds until the last rank has made it, and what the ranks say of joining."""
    begun = time.time_ns()
    done = run(command, DDPRUN_LOG_LEVEL="debug", DDPRUN_RECORD_LOSSES=losses)
    # Each rank writes its loss when the step is done, and nothing after it.
    ended = max(os.stat(f"{losses}.rank{rank}").st_mtime_ns for rank in range(WORKERS))
    joins = [float(ms) for ms in re.findall(r"joined a group of \d+ in ([\d.e-]+) ms", done.stderr)]
    return (ended - begun) / 1e6, joins


def bench_start(quick):
    """The example `train` and the same program in Python, up to the end of the first step; and with no name server."""
    with tempfile.TemporaryDirectory() as folder:
        training = ["--epochs=1", f"--batch-size={BATCH}", f"--limit={BATCH * WORKERS}"]
        ours = ("ddprun", ddprun_command(WORKERS, str(BUILD / "bin/ddprun_recorded_train"), *training), "ours")
        theirs = ("PyTorch", torchrun_command(WORKERS, PYTHON, str(ROOT / "tests/compat/train_ddp.py"), *training,
                                              f"--loss-file={folder}/theirs", f"--weights-file={folder}/weights"), "theirs")
        # PyTorch's program waits for a dead name server for minutes.
        for names, what, contestants in (("files", "2 ranks", [ours, theirs]), ("dead", "name server dead", [ours])):
            first = Row(f"start to first step, {what}", "ms")
            join = Row(f"joining the group, {what}", "ms", digits=2)
            for pair in range(1 if quick else 7):
                for name, command, losses in contestants if pair % 2 == 0 else reversed(contestants):
                    for left in pathlib.Path(folder).iterdir():
                        left.unlink()
                    ms, joins = one_start(with_names(names, command), f"{folder}/{losses}")
                    first.add(name, ms)
                    if joins:
                        join.add(name, min(joins))  # the other waits for this rank, which has started later
            for row, most in ((first, FIRST_STEP_BAR_MS), (join, JOIN_BAR_MS)):
                row.bar(f"≤ {most} ms", row.median("ddprun"), row.median("ddprun") <= most)
                yield row
