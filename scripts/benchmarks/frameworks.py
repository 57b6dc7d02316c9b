"""Restarts of published frameworks, as scripts/frameworks installs them: a rank is killed, the others are restarted, and the
training goes on from its checkpoint. With processes that wait for it, and without."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.programs import DDPRUN, ROOT, environment
from benchmarks.restarts import JOB, Stuck, standbys_of
from benchmarks.table import Row

NAMES = ("accelerate", "transformers", "lightning")
PYTHON = ROOT / "build-frameworks/venv/bin/python"
LIMIT_S = 120


class Job:
    """One of tests/compat/frameworks, whose ranks write when they begin a step (tiny.py)."""

    def __init__(self, name, standby, folder):
        self.folder = Path(folder)
        self.times = self.folder / "times"
        self.environment = {**environment(), "PYTHON_EXEC": str(PYTHON), "DDPRUN_CONTROL_DIR": folder, "FOLDER": folder,
                            "TIMES": str(self.times), "HF_HOME": folder, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
                            "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
        self.errors = open(self.folder / "errors", "w+")
        self.job = subprocess.Popen(
            [DDPRUN, "--nproc-per-node=2", "--max-restarts=1", f"--rdzv-id={JOB}", f"--standby={standby}",
             ROOT / f"tests/compat/frameworks/{name}_training.py"],
            stdout=self.errors, stderr=self.errors, env=self.environment, cwd=folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.job.send_signal(signal.SIGTERM)
        self.job.wait()
        self.errors.close()

    def until(self, holds):
        deadline = time.monotonic() + LIMIT_S
        while not (found := holds()):
            if self.job.poll() is not None or time.monotonic() > deadline:
                raise Stuck(f"{self.job.args[-1]} has not got on:\n{(self.folder / 'errors').read_text()[-2000:]}")
            time.sleep(0.01)
        return found

    def begun(self, round_number):
        """{rank: [(ns, step, pid)]}, when both have begun two steps of this round."""
        seen = {}
        for line in self.times.read_text().splitlines() if self.times.exists() else []:
            of, rank, *about = map(int, line.split())
            if of == round_number:
                seen.setdefault(rank, []).append(about)
        return seen if len(seen) == 2 and all(len(each) >= 2 for each in seen.values()) else None

    def restart_ms(self, standby):
        """From the SIGKILL to the end of the first step of all ranks."""
        pid = self.until(lambda: self.begun(0))[1][0][2]
        self.until(lambda: all((self.folder / f"held-{rank}").exists() for rank in range(2)))
        if standby != "off":
            self.until(lambda: standbys_of(self.environment) == 2)
        killed = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        after = self.until(lambda: self.begun(1))
        return (max(steps[1][0] for steps in after.values()) - killed) / 1e6


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
