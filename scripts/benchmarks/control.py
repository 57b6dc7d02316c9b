"""What it takes to look at a job that runs: ddpctl status, from the shell, on one node and over eight."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks.nodes import started_job
from benchmarks.programs import DDPCTL, WORKER, ddprun_command, environment, run
from benchmarks.table import Row

NODES = 8  # agents on loopback


def status(pid, nodes):
    """How long ddpctl takes from exec to exit, in ms; every node must have answered."""
    began = time.perf_counter()
    told = run([DDPCTL, "status", "--json", str(pid)])
    took = (time.perf_counter() - began) * 1e3
    answer = json.loads(told.stdout)
    if len(answer["nodes"]) != nodes or answer["late"]:
        sys.exit(f"bench: {len(answer['nodes'])} of {nodes} nodes answered ddpctl status, late: {answer['late']}")
    return took


def bench_here(quick):
    row = Row("ddpctl status, one node", "ms", digits=2)
    with tempfile.TemporaryDirectory() as name:
        job = subprocess.Popen(ddprun_command(2, WORKER, "stamp", name, "wait"), env=environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while len(list(pathlib.Path(name).glob("0.?"))) < 2:
                if job.poll() is not None or time.monotonic() > deadline:
                    sys.exit("bench: the job does not begin")
                time.sleep(0.001)
            for _ in range(10 if quick else 100):
                row.add("ddprun", status(job.pid, 1))
        finally:
            job.terminate()
            job.wait()
    row.bar("median ≤ 20 ms", row.median("ddprun"), row.median("ddprun") <= 20)
    return row


def bench_control(quick):
    yield bench_here(quick)
    row = Row(f"ddpctl status, {NODES} agents, from one that does not lead", "ms", digits=2)
    with started_job("ddprun", NODES, str(NODES)) as job:
        for _ in range(10 if quick else 100):
            row.add("ddprun", status(job.agents[-1].pid, NODES))
    row.bar("median ≤ 100 ms", row.median("ddprun"), row.median("ddprun") <= 100)
    yield row
