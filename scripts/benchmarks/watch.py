"""What it costs the agent to be watched: a scrape a second, and a live page that is open."""

import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from benchmarks.programs import BUILD, WORKER, ddprun_command, environment
from benchmarks.table import Row

SIMULATED_JOB = str(BUILD / "bin/ddprun_simulated_job")


def cpu_seconds(pid):
    """Of all threads; to the nanosecond, where /proc/PID/stat counts hundredths of a second."""
    return sum(int(task.read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def get(port, path):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10)


@contextlib.contextmanager
def page(port):
    """Listens as a browser does, and reads all that comes."""
    def read():
        with contextlib.suppress(OSError, ValueError):
            while stream.read1(1 << 16):
                pass

    stream = get(port, "/events")
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield
    stream.close()


def share_of_a_core(process, port, seconds, path="/metrics"):
    """Percent of a core that the process takes while it is scraped once a second."""
    get(port, path).read()
    began, before = time.monotonic(), cpu_seconds(process.pid)
    for second in range(1, seconds + 1):
        get(port, path).read()
        time.sleep(max(0, began + second - time.monotonic()))
    return 100 * (cpu_seconds(process.pid) - before) / (time.monotonic() - began)


@contextlib.contextmanager
def real_job(workers):
    with tempfile.TemporaryDirectory() as folder:
        errors = pathlib.Path(folder) / "errors"
        command = ddprun_command(workers, WORKER, "link", "progress", "412/1000", "wait", options=["--metrics-port=0"])
        with errors.open("wb") as stream:
            job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream, env=environment())
        try:
            deadline = time.monotonic() + 30
            while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", errors.read_text())):
                if job.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"bench: {' '.join(command)} says no port:\n{errors.read_text()}")
                time.sleep(0.01)
            port = int(found.group(1))
            while get(port, "/metrics").read().count(b"\nddprun_worker_step{") < workers:
                time.sleep(0.1)
            yield job, port
        finally:
            job.terminate()
            job.wait()


@contextlib.contextmanager
def simulated_job(ranks):
    """All ranks take a step a second, and nodes answer in JSON."""
    job = subprocess.Popen([SIMULATED_JOB, str(ranks), "live", "1000", "parse"], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
    try:
        yield job, int(job.stdout.readline().split()[1])
    finally:
        job.stdin.close()
        job.wait()
        job.stdout.close()


def bench_watch(quick):
    seconds = 3 if quick else 10
    runs = 1 if quick else 3
    cases = [("8 workers, a scrape a second", lambda: real_job(8), False),
             ("8 workers, a scrape a second and an open page", lambda: real_job(8), True),
             ("1,024 ranks on 128 nodes (simulated), a scrape a second and an open page",
              lambda: simulated_job(1024), True)]
    for what, make, has_page in cases:
        row = Row(f"CPU of an agent that is watched: {what}", "% of a core", digits=3)
        for _ in range(runs):
            with make() as (job, port), page(port) if has_page else contextlib.nullcontext():
                row.add("ddprun", share_of_a_core(job, port, seconds))
        row.bar("≤ 1 %", row.median("ddprun"), row.median("ddprun") <= 1)
        yield row
