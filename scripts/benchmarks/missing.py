"""How long it takes until the ranks that are left say which one is missing."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

from benchmarks.programs import BUILD, ddprun_command, environment
from benchmarks.table import Row

RANKS = 3
KILLED = RANKS - 1
PATIENCE = 60  # seconds


class Listener:
    """The lines that processes write to a pipe, with the time of each."""

    def __init__(self):
        self.lines = []
        self.changed = threading.Condition()

    def follow(self, pipe):
        def read():
            for line in pipe:
                with self.changed:
                    self.lines.append((time.monotonic(), line))
                    self.changed.notify_all()

        threading.Thread(target=read, daemon=True).start()

    def when(self, text, times):
        """When the text had been written so often."""
        def found():
            return [at for at, line in self.lines if text in line]

        with self.changed:
            if not self.changed.wait_for(lambda: len(found()) >= times, PATIENCE):
                sys.exit(f"bench: nobody wrote '{text}':\n{''.join(line for _, line in self.lines)}")
            return found()[times - 1]


def without_launcher(backend):
    """A rank kills itself; a launcher would stop the others before they say anything."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    heard, ranks = Listener(), []
    for rank in range(RANKS):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(subprocess.Popen([BUILD / "bin/ddprun_gloo_worker", "end", "killed", str(KILLED), "60000", backend],
                                      stderr=subprocess.PIPE, text=True,
                                      env={**environment(), **{name: str(value) for name, value in place.items()}}))
        heard.follow(ranks[-1].stderr)
    ranks[KILLED].wait()
    died = time.monotonic()
    said = heard.when(f"rank {KILLED} ", RANKS - 1)
    for rank in ranks:
        rank.wait()
    return said - died


def hanging():
    """Under ddprun, with a backend that hangs as NCCL does. The workers ignore SIGTERM, and have time."""
    heard = Listener()
    command = ddprun_command(RANKS, str(BUILD / "bin/ddprun_hanging_worker"), "throws",
                             options=("--failure-shutdown-timeout=30",))
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    heard.follow(job.stderr)
    heard.when(" waits", RANKS)
    children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    [victim] = [int(pid) for pid in children
                if f"RANK={KILLED}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    died = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    said = heard.when(f"rank {KILLED} died", RANKS - 1)
    job.wait()
    return said - died


def bench_missing(quick):
    """From a rank's SIGKILL until the last of the others has said which one it was."""
    for name, measure in (("Gloo, no launcher", lambda: without_launcher("gloo")),
                          ("shm, no launcher", lambda: without_launcher("shm")),
                          ("a backend that hangs as NCCL, under ddprun", hanging)):
        row = Row(f"SIGKILL of 1 of {RANKS} ranks until the others name it: {name}", "ms")
        for _ in range(2 if quick else 9):
            row.add("ddprun", measure() * 1e3)
        median = row.median("ddprun")
        row.bar("median ≤ 1 s", median / 1e3, median <= 1000)
        yield row
