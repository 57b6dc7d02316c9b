"""ddprun and torchrun understand a command line alike.

Random command lines (seeded) of torchrun's options, in every spelling argparse knows, go through
torchrun's own argument parser and through `ddprun --dry-run --json`. Where both accept one, every
option has the same value and the program the same arguments. Where only one accepts it, the reason
must be in the list below. torchrun is the one of the Python that runs this: PyTorch 2.11 in the usual run, the newest
with scripts/test --full (scripts/newest_torch).

usage: options_parity.py DDPRUN [SEED [COUNT]]
"""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from torch.distributed.run import get_args_parser

# Python 3.11's argparse finds a beginning that fits both spellings of one option ambiguous; later ones
# do not, and for us the two spellings are one option.
DDPRUN_ACCEPTS = ["ambiguous option"]
# torchrun checks these values later, when the job is set up; or takes an option for the program.
DDPRUN_REFUSES = [
    "--no-python: ",  # with -m
    "give 0 (none)",
    "give ranks",
    "give KEY=VALUE",
    "give null, console",
    "give static, c10d",
    "give HOST:PORT",
    "SIG",
    "name at least one signal",
    "or MIN:MAX",
    "log plug-ins",
    "give the number of workers",
    "unknown option",  # "--rolx=a b": argparse takes a word with a space for the program
    "the port is missing",
    "program -- not found",  # "-- --"
    "program x not found",  # an option that took the program for its value
    "program -h not found",
    "program -m not found",
    "program a not found",
    "/bin/true: give a host name",
]

PROGRAM = "/bin/true"
VALUES = {
    "nnodes": ["1", "1:1"],
    "nproc-per-node": ["1", "3"],
    "rdzv-backend": ["static", "c10d"],
    "rdzv-endpoint": ["", "localhost:1234"],
    "rdzv-id": ["a", "-1", "x y"],
    "rdzv-conf": ["", "timeout=3,join_timeout=4", "'timeout=3,join_timeout=4'"],
    "max-restarts": ["0", "3"],
    "monitor-interval": ["0.1", "5"],
    "start-method": ["spawn", "fork", "forkserver"],
    "event-log-handler": ["null", "console"],
    "role": ["r", "-1", "a b", "-x y", "-"],
    "log-dir": ["logs", ""],
    "redirects": ["0", "3", "0:1,2:3"],
    "tee": ["0", "3", "0:1,2:3"],
    "local-ranks-filter": ["", "0,1"],
    "duplicate-stdout-filters": ["a,,b", ""],
    "duplicate-stderr-filters": ["q"],
    "node-rank": ["0"],
    "master-addr": ["h"],
    "master-port": ["29500", "1"],
    "local-addr": ["h"],
    "logs-specs": ["default"],
    "signals-to-handle": ["SIGTERM", "SIGINT,SIGUSR1"],
    "shutdown-timeout": ["5", "0"],
    "log-line-prefix-template": ["${rank}: ", ""],
}
SINCE = {"shutdown-timeout": (2, 12), "log-line-prefix-template": (2, 14)}
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
if VERSION < max(SINCE.values()):  # "--log-" is --log-dir while there is no --log-line-prefix-template
    DDPRUN_REFUSES.append("is short for more than one option")
VALUES = {name: values for name, values in VALUES.items() if SINCE.get(name, ()) <= VERSION}
FLAGS = ["standalone", "module", "no-python", "run-path", "virtual-local-rank"]
PROGRAM_ARGUMENTS = [[], ["a", "--nproc-per-node", "4"], ["-h"], ["-m"], ["--"], ["--", "--"], ["--", "--", "--"],
                     ["--", "x"], ["--", "-t", "3", "--"], ["--", "--", "--x"], ["a", "--", "--x"], ["", "--"]]


def spelling(name, rng):
    """Dashes or underscores, sometimes only the beginning, sometimes with a slip."""
    if rng.random() < 0.5:
        name = name.replace("-", "_")
    if rng.random() < 0.25:
        name = name[: rng.randint(2, len(name))]
    if rng.random() < 0.04:
        at = rng.randrange(len(name))
        name = name[:at] + rng.choice("xyz") + name[at + 1 :]
    return "--" + name


def random_option(rng):
    if rng.random() < 0.2:
        letter = rng.choice("rtm")
        value = rng.choice(VALUES["tee"])
        if letter == "m":
            return ["-m"]
        forms = [[f"-{letter}{value}"], [f"-{letter}", value], [f"-{letter}={value}"], [f"-m{letter}{value}"], [f"-{letter}"]]
        return rng.choice(forms)
    name = rng.choice(list(VALUES) + FLAGS)
    if name in FLAGS:
        return [spelling(name, rng) + ("=1" if rng.random() < 0.03 else "")]
    value = rng.choice(VALUES[name])
    form = rng.random()
    if form < 0.45:
        return [f"{spelling(name, rng)}={value}"]
    if form < 0.95:
        return [spelling(name, rng), value]
    return [spelling(name, rng)]


def random_command_line(rng):
    words = []
    for _ in range(rng.randint(0, 4)):
        words += random_option(rng)
    if rng.random() < 0.15:
        words.append("--")
    if rng.random() < 0.95:
        words += [PROGRAM] + rng.choice(PROGRAM_ARGUMENTS)
    return words


def ask_torchrun(parser, words):
    """(namespace, None) or (None, what it said)"""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parser.parse_args(words), None
    except SystemExit:
        return None, said.getvalue()


def ask_ddprun(ddprun, words, environment):
    done = subprocess.run([ddprun, "--dry-run", "--json", *words], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        return None, done.stderr
    if not done.stdout.startswith("{"):
        return None, done.stdout  # an option took the program for its value, and then came -h
    return json.loads(done.stdout), None


def differences(parser, theirs, ours):
    """Each option that the two understood differently, and the program's arguments if they differ."""
    found = []
    for action in parser._actions:
        names = [name[2:] for name in action.option_strings if name.startswith("--")]
        if not names or action.dest == "help":
            continue
        setting = ours["settings"][names[0].replace("_", "-")]
        value, text = getattr(theirs, action.dest), setting["value"]
        if action.const is True:
            same = bool(value) == (text == "1")
        elif value is None or isinstance(value, list):
            same = setting["origin"] == "default" or isinstance(value, list)
        elif isinstance(value, (int, float)):
            same = float(text) == value
        else:
            same = str(value) == text
        if not same:
            found.append(f"{names[0]}: torchrun {value!r}, ddprun {text!r}")
    # Of a program that Python runs, the user's words begin with the program.
    first = ours["job"]["first_user_argument"]
    words = ours["job"]["argv"][first if first == 1 else first + 1 :]
    if words != theirs.training_script_args:
        found.append(f"arguments: torchrun {theirs.training_script_args}, ddprun {ours['job']['argv']}")
    return found


def main():
    ddprun = os.path.abspath(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 600
    for name in [name for name in os.environ if name.startswith(("PET_", "DDPRUN_"))]:
        del os.environ[name]
    rng = random.Random(seed)
    parser = get_args_parser()
    both = failures = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for _ in range(count):
            words = random_command_line(rng)
            theirs, their_complaint = ask_torchrun(parser, words)
            ours, our_complaint = ask_ddprun(ddprun, words, os.environ)
            problems = []
            if theirs and ours:
                both += 1
                problems = differences(parser, theirs, ours)
            elif theirs and not any(reason in our_complaint for reason in DDPRUN_REFUSES):
                problems = [f"only torchrun accepts it; ddprun: {our_complaint.strip()}"]
            elif ours and not any(reason in their_complaint for reason in DDPRUN_ACCEPTS):
                problems = [f"only ddprun accepts it; torchrun: {their_complaint.strip().splitlines()[-1:]}"]
            for problem in problems:
                failures += 1
                print(f"{words}: {problem}")
    print(f"beside torchrun of PyTorch {torch.__version__}, seed {seed}: {count} command lines, {both} accepted by both, {failures} differences")
    # A generator that produced little but refusals would prove nothing.
    return 0 if failures == 0 and both > count // 2 else 1


if __name__ == "__main__":
    sys.exit(main())
