"""Restarts of published frameworks, as scripts/frameworks installs them: a rank is killed, the others are restarted, and the
training goes on from its checkpoint. With processes that wait for it, and without."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.programs import ROOT
from benchmarks.restarts import WORKERS, Training, ddprun_with
from benchmarks.table import Row

NAMES = ("accelerate", "transformers", "lightning")
PYTHON = ROOT / "build-frameworks/venv/bin/python"


class Job(Training):
    """One of tests/compat/frameworks, whose ranks write a line when they begin a step (tiny.py)."""

    def __init__(self, name, standby, folder):
        self.times = Path(folder) / "times"
        super().__init__(folder, ddprun_with(standby, folder), [ROOT / f"tests/compat/frameworks/{name}_training.py"],
                         PYTHON_EXEC=str(PYTHON), FOLDER=folder, TIMES=str(self.times), HF_HOME=folder, HF_HUB_OFFLINE="1",
                         CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="1", PYTHONPATH=str(ROOT / "worker_lib/python"))

    def lines(self):
        return self.times.read_text().splitlines() if self.times.exists() else []

    def steps_of(self, number):
        """{rank: [(pid, ns)]}, when all have begun two steps of this round."""
        seen = {}
        for line in self.lines():
            of, rank, pid, _, when = map(int, line.split())
            if of == number:
                seen.setdefault(rank, []).append((pid, when))
        return seen if len(seen) == WORKERS and all(len(each) >= 2 for each in seen.values()) else None

    def restart_ms(self, standby):
        """From the SIGKILL to the end of the first step of all ranks."""
        pid = self.until(lambda: self.steps_of(0))[1][0][0]
        self.until(lambda: all((self.folder / f"held-{rank}").exists() for rank in range(WORKERS)))
        if standby != "off":
            self.until(self.standbys_wait)
        killed = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        after = self.until(lambda: self.steps_of(1))
        return (max(steps[1][1] for steps in after.values()) - killed) / 1e6


def bench_frameworks(quick):
    if not PYTHON.exists():
        print("bench: frameworks is left out: scripts/frameworks installs them", file=sys.stderr)
        return
    for name in NAMES:
        row = Row(f"{name}, tiny model, SIGKILL of 1 of 2 ranks to the next step of all", "ms")
        for _ in range(1 if quick else 4):
            for contestant, standby in (("ddprun", "auto"), ("without", "off")):
                with tempfile.TemporaryDirectory() as folder, Job(name, standby, folder) as job:
                    row.add(contestant, job.restart_ms(standby))
        ratio = row.ratio("without", "ddprun")
        row.bar("≥ 3 × faster than --standby=off", ratio, ratio >= 3)
        yield row
