"""What is measured: the programs, how each contestant is called, and how their runs are timed."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
DDPRUN = str(BUILD / "bin/ddprun")
DDPCTL = str(BUILD / "bin/ddpctl")
WORKER = str(BUILD / "bin/ddprun_test_worker")
PYTHON = str(ROOT / ".venv/bin/python")
TORCHRUN = str(ROOT / ".venv/bin/torchrun")


def environment():
    # Set, so that nobody spends time on saying that it is not.
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def ddprun_command(workers, *program, options=()):
    return [DDPRUN, f"--nproc-per-node={workers}", *options, *program]


def torchrun_command(workers, *program, options=()):
    return [TORCHRUN, "--standalone", f"--nproc-per-node={workers}", *options, "--no-python", *program]


def run_timer(repetitions, *commands, memory=False):
    """The runs that bench/time_commands reports, as (index of the command, its line)."""
    arguments = [str(BUILD / "bench/time_commands")] + (["--memory"] if memory else []) + [str(repetitions)]
    for command in commands:
        arguments += ["--", *command]
    output = subprocess.run(arguments, stdout=subprocess.PIPE, check=True, text=True, env=environment()).stdout
    for line in map(json.loads, output.splitlines()):
        if line["code"] != 0:
            sys.exit(f"bench: {' '.join(commands[line['command']])} ended with {line['code']}")
        yield line["command"], line


def memory_kib(pid, what):
    """VmRSS, VmHWM … of a process."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1])
    return 0
