"""Trainings whose rank 0 is killed again and again: how long until the next round's workers are where it was."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from benchmarks.programs import DDPCTL, DDPRUN, PYTHON, end_left_workers, environment, whole_lines

WORKERS = 2
JOB = "standby"
LIMIT_S = 120


class Stuck(Exception):
    """A job has not got on, or has ended."""


class Training:
    """One job, in a folder of its own, whose rank 0 is killed again and again. `program`: its command line without the
    folder; it prints lines as tests/bench/standby_training.py does."""

    def __init__(self, folder, command, program, workers=WORKERS, limit_s=LIMIT_S, **variables):
        self.workers, self.limit_s = workers, limit_s
        self.begun = time.monotonic_ns()
        self.folder = pathlib.Path(folder)
        self.environment = {**environment(), "PYTHON_EXEC": PYTHON, "DDPRUN_CONTROL_DIR": str(folder), **variables}
        self._out = open(self.folder / "out", "w")
        self.job = subprocess.Popen([*command, *program, folder], stdout=self._out, stderr=subprocess.DEVNULL,
                                    env=self.environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.job.send_signal(signal.SIGTERM)
        self.job.wait()
        self._out.close()
        end_left_workers({int(line.split()[2]) for line in self.lines()}, self.folder)

    def lines(self):
        return whole_lines(self.folder / "out")

    def until(self, holds):
        deadline = time.monotonic() + self.limit_s
        while not (found := holds()):
            if self.job.poll() is not None or time.monotonic() > deadline:
                raise Stuck(f"{' '.join(map(str, self.job.args))} has not got on: {self.lines()[-4:]}")
            time.sleep(0.02)
        return found

    def of_round(self, number):
        """{"line": {rank: ns}, "step": …, "pid": …} when all ranks have made their first step; "later": how long one took."""
        seen = {"line": {}, "setup": {}, "step": {}, "pid": {}, "later": {}}
        for line in self.lines():
            of, rank, pid, what, when = line.split()
            if int(of) == number:
                seen[what][int(rank)] = int(when)
                seen["pid"][int(rank)] = int(pid)
        return seen if len(seen["step"]) == self.workers else None

    def standbys_wait(self):
        asked = subprocess.run([DDPCTL, "status", "--json", JOB], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env=self.environment)
        standbys = json.loads(asked.stdout)["nodes"][0]["standbys"] if asked.returncode == 0 else None
        return standbys and standbys["waiting"] == WORKERS

    def kill(self, number):
        """(ns, ms, ms): when rank 0 was killed in this round, and how long it took to the last first line and the last
        first step of the next."""
        pids = self.until(lambda: self.of_round(number))["pid"]
        time.sleep(0.3)
        killed = time.monotonic_ns()
        os.kill(pids[0], signal.SIGKILL)
        after = self.until(lambda: self.of_round(number + 1))
        return killed, *((max(after[what].values()) - killed) / 1e6 for what in ("line", "step"))

    def exits_ms(self, number, killed):
        """Until the last worker of this round had ended, as the events tell it."""
        events = map(json.loads, whole_lines(self.folder / "events"))
        ends = [event["monotonic_us"] for event in events
                if event["event"] == "worker_exited" and event["round"] == number]
        return max(ends) / 1e3 - killed / 1e6


def add_kills(training, count, line, step, name):
    """Samples of a contestant for these rows; torchrun's workers do not always find each other after a restart."""
    try:
        for number in range(count):
            _, to_line, to_step = training.kill(number)
            line.add(name, to_line)
            step.add(name, to_step)
    except Stuck as stuck:
        if name != "torchrun":
            raise
        print(f"bench: {stuck}", file=sys.stderr)


def own_memory_kib(pid):
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def switches(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def waiting_processes(training):
    """The agent's children that run the program and are no workers: the one that forks, then those that wait."""
    others = {int(line.split()[2]) for line in training.lines()}
    children = pathlib.Path(f"/proc/{training.job.pid}/task/{training.job.pid}/children").read_text().split()
    keepers = {pid for pid in map(int, children) if pathlib.Path(f"/proc/{pid}/comm").read_text() == "ddprun-keeper\n"}
    return sorted(pid for pid in map(int, children) if pid not in others | keepers)


def cpu_seconds(pid):
    """Of this process and of its children that have ended."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def ddprun_with(standby, folder):
    return [DDPRUN, f"--nproc-per-node={WORKERS}", "--max-restarts=100", f"--rdzv-id={JOB}", f"--standby={standby}",
            f"--events={folder}/events"]


def measure_waiting(training, zygote, own, woken):
    """Samples for these rows of a job whose standbys wait."""
    forks, *standbys = waiting_processes(training)
    zygote.add("ddprun", own_memory_kib(forks) / 1024)
    before = [switches(pid) for pid in (forks, *standbys)]
    time.sleep(10)
    for pid in standbys:
        own.add("ddprun", own_memory_kib(pid) / 1024)
    for pid, switched in zip((forks, *standbys), before):
        woken.add("ddprun", switches(pid) - switched)
