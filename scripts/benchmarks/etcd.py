"""A job whose agents elect the leader in etcd: how long until the others run the next round without it."""

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from benchmarks.nodes import free_port, now_ns, started_job
from benchmarks.table import Row

LEASE_S = 2


@contextlib.contextmanager
def etcd():
    """A single etcd with a folder of its own; yields its HOST:PORT."""
    client, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            ["etcd", f"--data-dir={folder}", f"--listen-client-urls=http://{client}",
             f"--advertise-client-urls=http://{client}", f"--listen-peer-urls=http://{peer}",
             f"--initial-advertise-peer-urls=http://{peer}", f"--initial-cluster=default=http://{peer}",
             "--log-level=fatal"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 30
            while not answer(client, "lease/leases", {}):
                if time.monotonic() > deadline:
                    sys.exit("bench: etcd does not answer")
                time.sleep(0.05)
            yield client
        finally:
            server.kill()
            server.wait()


def answer(client, what, question):
    request = urllib.request.Request(f"http://{client}/v3/{what}", json.dumps(question).encode())
    with contextlib.suppress(OSError):
        return json.load(urllib.request.urlopen(request, timeout=3))
    return None


def leading_agent(job, client, run_id):
    """The agent that listens where etcd says the leader is."""
    key = base64.b64encode(f"/ddprun/{run_id}/leader".encode()).decode()
    value = base64.b64decode(answer(client, "kv/range", {"key": key})["kvs"][0]["value"])
    port = int(json.loads(value)["address"].rsplit(":", 1)[1])
    tables = pathlib.Path("/proc/net/tcp").read_text() + pathlib.Path("/proc/net/tcp6").read_text()
    inode = re.search(rf":{port:04X} \S+ 0A (?:\S+ +){{5}}(\d+)", tables).group(1)
    for agent in job.agents:
        folder = f"/proc/{agent.pid}/fd"
        if any(os.readlink(f"{folder}/{fd}") == f"socket:[{inode}]" for fd in os.listdir(folder)):
            return agent
    sys.exit("bench: no agent leads")


def leader_loss(client, run_id, number):
    with started_job("ddprun", 3, "2:3", "--rdzv-backend=etcd", f"--rdzv-endpoint={client}", f"--rdzv-id={run_id}",
                     f"--rdzv-conf=lease_time={LEASE_S},last_call_timeout=1") as job:
        leader = leading_agent(job, client, run_id)
        lost_at = now_ns()
        leader.send_signal(number)
        return job.await_new_round(2, lost_at) / 1e3


def bench_etcd(quick):
    if shutil.which("etcd") is None:
        sys.exit("bench: etcd is missing; run scripts/setup")
    killed = Row("etcd, lease 2 s: SIGKILL of the leader to the next round of the others", "s", digits=2)
    silent = Row("etcd, lease 2 s: SIGSTOP of the leader to the next round of the others", "s", digits=2)
    with etcd() as client:
        for sample in range(3 if quick else 9):
            killed.add("ddprun", leader_loss(client, f"killed{sample}", signal.SIGKILL))
            silent.add("ddprun", leader_loss(client, f"silent{sample}", signal.SIGSTOP))
    for row in (killed, silent):
        row.bar("median ≤ 3 s", row.median("ddprun"), row.median("ddprun") <= LEASE_S + 1)
        yield row
