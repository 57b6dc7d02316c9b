"""What it costs to know in which call a rank is, and how long until one that does not come, or hangs, is named, and
until its stack is there."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

from benchmarks.programs import BUILD, DDPCTL, ddprun_command, environment, run
from benchmarks.table import Row

WAITING = str(BUILD / "bin/ddprun_waiting_worker")
LIMIT_S = 60


class Waiting:
    """A job over shared memory whose last rank stops coming after ten steps."""

    def __init__(self, workers, fault="waits", **more_environment):
        self.folder = tempfile.TemporaryDirectory()
        self.events = pathlib.Path(self.folder.name) / "events"
        self.control = {"DDPRUN_CONTROL_DIR": f"{self.folder.name}/control"}
        command = ddprun_command(workers, f"--events={self.events}", WAITING, "shm", fault)
        self.job = subprocess.Popen(command, stderr=subprocess.DEVNULL,
                                    env={**environment(), "OMP_NUM_THREADS": "1", **self.control, **more_environment})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.job.send_signal(signal.SIGTERM)
        self.job.wait()
        self.folder.cleanup()

    def told(self, name):
        """The first event of this name."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and self.job.poll() is None:
            lines = self.events.read_text().splitlines(keepends=True) if self.events.exists() else []
            for event in (json.loads(line) for line in lines if line.endswith("\n")):
                if event["event"] == name:
                    return event
            time.sleep(0.02)
        raise SystemExit(f"bench: there was no event {name} in {LIMIT_S} s")

    def named_after(self):
        """Seconds from the first rank that waited."""
        return self.told("waiting_for")["waited_us"] / 1e6

    def stacks_s(self):
        """How long ddpctl takes for the stacks of all ranks, and of which tool they are."""
        begin = time.monotonic()
        answer = json.loads(run([DDPCTL, "stacks", "--json"], **self.control).stdout)
        return time.monotonic() - begin, {worker["source"] for worker in answer}

    def cpu_s(self):
        threads = pathlib.Path(f"/proc/{self.job.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


class WaitingNodes:
    """A job over Gloo with one rank on each node, whose last rank stops coming after ten steps."""

    def __init__(self, nodes):
        self.folder = tempfile.TemporaryDirectory()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.events = pathlib.Path(self.folder.name) / "events"
        self.agents = []
        for node in range(nodes):
            command = ddprun_command(1, f"--nnodes={nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}",
                                     *[f"--events={self.events}"] * (node == 0), WAITING, "gloo", "waits")
            self.agents.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, env={
                **environment(), "OMP_NUM_THREADS": "1", "DDPRUN_CONTROL_DIR": f"{self.folder.name}/control"}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            agent.wait()
        self.folder.cleanup()

    def wait(self):
        deadline = time.monotonic() + 3 * LIMIT_S
        while not self.events.exists() or '"event":"waiting_for"' not in self.events.read_text():
            if time.monotonic() > deadline or any(agent.poll() is not None for agent in self.agents):
                raise SystemExit("bench: the nodes did not come to wait")
            time.sleep(0.1)

    def cpu_s(self):
        """The first agent's, and that of all."""
        each = [sum(int((thread / "schedstat").read_text().split()[0]) for thread in pathlib.Path(f"/proc/{agent.pid}/task").iterdir())
                for agent in self.agents]
        return each[0] / 1e9, sum(each) / 1e9


def bench_hang(quick):
    row = Row("a collective in the worker's record, beyond two readings of the clock", "ns", digits=1)
    for _ in range(1 if quick else 5):
        command = ddprun_command(1, str(BUILD / "bench/record_call"))
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment()).stdout
        figures = json.loads(output)
        row.add("ddprun", figures["call_ns"] - figures["clock_ns"])
    row.bar("≤ 60 ns", row.median("ddprun"), row.median("ddprun") <= 60)
    yield row

    row = Row("a rank that does not come, until it is named", "s", digits=2)
    for _ in range(2 if quick else 15):
        with Waiting(3) as job:
            row.add("ddprun", job.named_after())
    slowest = max(row.samples["ddprun"])
    row.bar("median ≤ 2 s", row.median("ddprun"), row.median("ddprun") <= 2)
    row.bar("slowest ≤ 4 s", slowest, slowest <= 4)
    yield row

    row = Row("a rank that is stopped, from the verdict until the report with all stacks", "s", digits=2)
    for _ in range(1 if quick else 5):
        with Waiting(3, "stops") as job:
            verdict, report = job.told("hung"), job.told("hang_report")
            row.add("ddprun", (report["monotonic_us"] - verdict["monotonic_us"]) / 1e6)
    yield row

    for title, bar, path in (("from /proc", 1, "/nonexistent"), ("with the tools that are here", 6, os.environ["PATH"])):
        row = Row(f"ddpctl stacks of 8 ranks, {title}", "s", digits=2)
        with Waiting(8, PATH=path) as job:
            job.named_after()
            for _ in range(1 if quick else 5):
                seconds, sources = job.stacks_s()
                row.add("ddprun", seconds)
        row.what += f" ({', '.join(sorted(sources))})"
        row.bar(f"≤ {bar} s", row.median("ddprun"), row.median("ddprun") <= bar)
        yield row

    row = Row("agent that watches 8 workers of which 7 wait", "% of a core", digits=3)
    seconds = 5 if quick else 60
    with Waiting(8) as job:
        job.named_after()
        before = job.cpu_s()
        time.sleep(seconds)
        row.add("ddprun", (job.cpu_s() - before) / seconds * 100)
    row.bar("≤ 0.2 %", row.median("ddprun"), row.median("ddprun") <= 0.2)
    yield row

    row = Row("agent that watches 8 workers that train, and looks for slow ranks", "% of a core", digits=3)
    with Waiting(8, "trains", DDPRUN_TEST_SECONDS="100000") as job:
        time.sleep(5)  # until it trains
        before = job.cpu_s()
        time.sleep(seconds)
        row.add("ddprun", (job.cpu_s() - before) / seconds * 100)
    row.bar("≤ 0.2 %", row.median("ddprun"), row.median("ddprun") <= 0.2)
    yield row

    of_nodes = {}
    for nodes in (5, 10) if quick else (10, 20, 40):
        row = Row(f"all agents of {nodes} nodes of which all but one wait", "ms of a core each second", digits=2)
        with WaitingNodes(nodes) as job:
            job.wait()
            time.sleep(2)
            first, every = job.cpu_s()
            time.sleep(seconds / 3)
            first_then, every_then = job.cpu_s()
        of_nodes[nodes] = (every_then - every) / (seconds / 3) * 1000
        row.add("ddprun", of_nodes[nodes])
        row.what += f" (the first alone {(first_then - first) / (seconds / 3) * 1000:.2f})"
        fewest = min(of_nodes)
        if nodes > fewest:
            grown = of_nodes[nodes] / of_nodes[fewest] / (nodes / fewest)
            row.bar(f"≤ 1.5 times as much for each node as of {fewest}", grown, grown <= 1.5)
        yield row
