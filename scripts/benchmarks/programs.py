"""What is measured: the programs, how each contestant is called, and how their runs are timed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
DDPRUN = str(BUILD / "bin/ddprun")
DDPCTL = str(BUILD / "bin/ddpctl")
WORKER = str(BUILD / "bin/ddprun_test_worker")
PYTHON = os.environ.get("DDPRUN_PYTHON") or str(ROOT / ".venv/bin/python")
TORCHRUN = str(ROOT / ".venv/bin/torchrun")


# torchrun leaves a folder behind for every run; it goes with this process.
TEMPORARY = tempfile.TemporaryDirectory(prefix="ddprun_bench_")


def environment():
    # OMP_NUM_THREADS is set so that nobody spends time on saying that it is not.
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": TEMPORARY.name}


def ddprun_command(workers, *program, options=()):
    return [DDPRUN, f"--nproc-per-node={workers}", *options, *program]


def torchrun_command(workers, *program, options=()):
    return [TORCHRUN, "--standalone", f"--nproc-per-node={workers}", *options, "--no-python", *program]


def run(command, **more_environment):
    """A finished run whose output is read; one that fails ends the benchmark with what it said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**environment(), **more_environment})
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done


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


def still_running(pids, folder):
    """Those of these workers that run, known by the folder on their command line: a pid may be another's by now."""
    def is_ours(pid):
        try:
            return str(folder).encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False

    return [pid for pid in pids if is_ours(pid)]


def end_left_workers(pids, folder):
    """torchrun's live on when it is killed, or told to stop in the moment when it starts them."""
    for pid in still_running(pids, folder):
        os.kill(pid, signal.SIGKILL)


def whole_lines(file):
    """Of a file that is being written: without a last line that has no end yet."""
    return file.read_text().rpartition("\n")[0].splitlines()
