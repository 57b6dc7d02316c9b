"""The life cycle of a job on one node: its start, a restart, the memory that the launcher takes, the worker link."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks.programs import (BUILD, PYTHON, ROOT, WORKER, ddprun_command, end_left_workers, environment,
                                 run_timer, torchrun_command)
from benchmarks.table import Row


def bench_launch(quick):
    """From exec of the launcher to its exit, with workers that do nothing."""
    for workers in (1, 2, 8, 64):
        row = Row(f"launch {workers} × /bin/true", "ms", digits=2)
        floor = [str(BUILD / "bench/bare_spawn"), str(workers), "/bin/true"]
        for _ in range(2 if quick else 7):
            ours = run_timer(10, floor, ddprun_command(workers, "/bin/true"))
            for index, line in ours:
                row.add(("floor", "ddprun")[index], line["seconds"] * 1e3)
            for _, line in run_timer(1, torchrun_command(workers, "/bin/true")):
                row.add("torchrun", line["seconds"] * 1e3)
        if workers == 2:
            ratio = row.ratio("ddprun", "floor")
            row.bar("≤ 3 × the floor", ratio, ratio <= 3)
            ratio = row.ratio("torchrun", "ddprun")
            row.bar("≥ 200 × faster than torchrun", ratio, ratio >= 200)
        yield row


def stamps(folder, round_number, workers):
    """When each rank of this round ran its first instruction, in ns, and its pid; None until all have."""
    found = []
    for rank in range(workers):
        try:
            found.append(tuple(map(int, (folder / f"{round_number}.{rank}").read_text().split())))
        except FileNotFoundError:
            return None
    return found


def await_stamps(folder, round_number, workers, launcher):
    deadline = time.monotonic() + 60
    while (found := stamps(folder, round_number, workers)) is None:
        if launcher.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"bench: {' '.join(map(str, launcher.args))} did not start round {round_number}")
        time.sleep(0.001)
    return found


def restart_times(command_of, kills, workers=2, options=(), work="wait", console=subprocess.DEVNULL, ready=lambda: True):
    """From a worker's SIGKILL to the first instruction of the last rank of the next round, in ms, several times."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        options = [f"--max-restarts={kills}", *(option.replace("{folder}", name) for option in options)]
        command = command_of(workers, WORKER, "stamp", name, *work.split(), options=options)
        launcher = subprocess.Popen(command, stdout=console, stderr=console, env=environment())
        pids = set()
        try:
            for number in range(kills):
                before = await_stamps(folder, number, workers, launcher)
                pids |= {pid for _, pid in before}
                while not ready():
                    time.sleep(0.001)
                time.sleep(0.02)  # the launcher is idle again, as it is in the middle of a training
                _, victim = before[number % workers]
                killed_at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                os.kill(victim, signal.SIGKILL)
                after = await_stamps(folder, number + 1, workers, launcher)
                pids |= {pid for _, pid in after}
                yield (max(at for at, _ in after) - killed_at) / 1e6
        finally:
            launcher.terminate()
            launcher.wait()
            end_left_workers(pids, folder)


def bench_restart(quick):
    row = Row("SIGKILL of 1 of 2 workers to the new group", "ms", digits=2)
    for _ in range(1 if quick else 5):
        for sample in restart_times(ddprun_command, kills=10):
            row.add("ddprun", sample)
        for sample in restart_times(torchrun_command, kills=4):
            row.add("torchrun", sample)
    row.bar("median ≤ 15 ms", row.median("ddprun"), row.median("ddprun") <= 15)
    ratio = row.ratio("torchrun", "ddprun")
    row.bar("≥ 10 × faster than torchrun", ratio, ratio >= 10)
    yield row


def bench_memory(quick):
    """The peak resident size of the launcher alone, its workers not counted."""
    for workers in (2, 64):
        row = Row(f"peak memory with {workers} workers", "MiB")
        commands = [ddprun_command(workers, "/bin/true"), torchrun_command(workers, "/bin/true")]
        for index, line in run_timer(1 if quick else 5, *commands, memory=True):
            row.add(("ddprun", "torchrun")[index], line["peak_kib"] / 1024)
        if workers == 2:
            worst = max(row.samples["ddprun"])
            row.bar("≤ 5.5 MiB", worst, worst <= 5.5)
        yield row


def bench_link(quick):
    """What a worker pays to say how far it is: a note on the page that it shares with the agent."""
    rows = {"step_ns": Row("progress update over the worker link", "ns", digits=1),
            "with_loss_ns": Row("the same with a loss", "ns", digits=1)}
    for _ in range(1 if quick else 5):
        command = ddprun_command(1, str(BUILD / "bench/link_update"))
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment()).stdout
        for figure, row in rows.items():
            row.add("ddprun", json.loads(output)[figure])
    for row in rows.values():
        row.bar("≤ 100 ns", row.median("ddprun"), row.median("ddprun") <= 100)
        yield row


def bench_hooks(quick):
    """What Python programs pay for what they do not report: a step, a collective over Gloo, the start without PyTorch."""
    row = Row("hook of a Python program's optimizer, per step", "ns", digits=0)
    for _ in range(1 if quick else 5):
        command = ddprun_command(1, str(ROOT / "tests/bench/python_hook.py"))
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True,
                                env={**environment(), "PYTHON_EXEC": PYTHON}).stdout
        row.add("ddprun", json.loads(output)["hook_ns"])
    row.bar("≤ 1000 ns", row.median("ddprun"), row.median("ddprun") <= 1000)
    yield row

    rows = {"root_ns": (Row("its record: a call with a root (others: nothing)", "us", digits=2), 1e3, 2),
            "look_ns": (Row("its record: a look, ten times a second", "us", digits=1), 1e3, 100),
            "read_ns": (Row("its record: reading all of the flight recorder, where it waits", "ms", digits=1), 1e6, 100)}
    for _ in range(1 if quick else 3):
        command = ddprun_command(2, str(ROOT / "tests/bench/python_record.py"))
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True,
                                env={**environment(), "PYTHON_EXEC": PYTHON}).stdout
        for figure, (row, unit, _) in rows.items():
            row.add("ddprun", json.loads(output)[figure] / unit)
    for row, _, bar in rows.values():
        row.bar(f"≤ {bar} {row.unit}", row.median("ddprun"), row.median("ddprun") <= bar)
        yield row

    row = Row("start and end of a Python program without PyTorch; floor: without hooks", "ms", digits=2)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        command = ["env", f"PYTHON_EXEC={PYTHON}", *ddprun_command(1, script.name)]
        without = ["env", "DDPRUN_PYTHON_HOOKS=0", *command[1:]]
        for index, line in run_timer(10 if quick else 100, command, without):
            row.add(("ddprun", "floor")[index], line["seconds"] * 1e3)
    yield row
