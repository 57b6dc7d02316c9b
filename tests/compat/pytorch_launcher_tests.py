"""PyTorch's own tests of its launcher, with ddprun in the place of torchrun.

They are read from a checkout or a source package of PyTorch, whose test/distributed/launcher they are; nothing of them is
kept here. torch.distributed.run.main(arguments) becomes a call of ddprun: exit code 2 is the ValueError with which torchrun
refuses, any other failure its ChildFailedError. What fails on purpose is in DIFFERS with its reason; a test of that list
that passes is a failure as well, so that the list stays true. api_test.py is left out: it calls torchrun as a Python
library, which ddprun is not.

usage: pytorch_launcher_tests.py DDPRUN SOURCES [TEST…]        (needs pytest and expecttest, as PyTorch's tests do)
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

import torch.distributed.launch
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

FILES = ("test_run.py", "launch_test.py")
LONGEST_S = 120

MOCKS = "replaces parts of torchrun in this process by mocks, which another process does not see"
DIFFERS = {
    "test_launch_elastic_agent_raise_exception": MOCKS,
    "test_launch_elastic_worker_raise_exception": MOCKS + ": counts the calls of events.record",
    "test_launch_shutdown": MOCKS,
    "test_nproc_gpu_launch_configurations": MOCKS + ": PyTorch's count of GPUs; ddprun counts them without PyTorch",
    "test_nproc_xpu_launch_configurations": MOCKS + ": PyTorch's count of GPUs; ddprun counts NVIDIA's and AMD's",
}


def run_by_ddprun(arguments=None):
    environment = {"PYTHON_EXEC": sys.executable, **os.environ}
    done = subprocess.run([DDPRUN, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=LONGEST_S)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    if done.returncode == 2:
        raise ValueError(done.stderr)
    if done.returncode != 0:
        raise ChildFailedError("ddprun", {0: ProcessFailure(0, 0, done.returncode, "")})


def launch_by_ddprun(arguments=None):
    """`python -m torch.distributed.launch`: torchrun, whose scripts get --local-rank unless there is --use-env."""
    parsed = torch.distributed.launch.parse_args(arguments)
    arguments = [word for word in arguments if word.replace("_", "-") != "--use-env"]
    if not parsed.use_env:
        arguments.insert(arguments.index(parsed.training_script) + 1, "--local-rank=${local_rank}")
    run_by_ddprun(arguments)


def load(folder):
    suite = unittest.TestSuite()
    for name in FILES:
        if (folder / name).exists():
            spec = importlib.util.spec_from_file_location("pytorch_" + name.removesuffix(".py"), folder / name)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    return suite


def tests_of(suite):
    for each in suite:
        yield from tests_of(each) if isinstance(each, unittest.TestSuite) else [each]


class Outcome(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.failed = {}

    def addFailure(self, test, err):
        self.failed[test] = self._exc_info_to_string(err, test)

    addError = addFailure


def main():
    global DDPRUN
    DDPRUN = os.path.abspath(sys.argv[1])
    folder = pathlib.Path(sys.argv[2]).resolve()
    below = folder / "test/distributed/launcher"
    folder = below if below.exists() else folder
    only = sys.argv[3:]
    sys.argv[1:] = []  # PyTorch's test utilities read it
    torch.distributed.run.main = run_by_ddprun
    torch.distributed.launch.main = launch_by_ddprun
    tests = [test for test in tests_of(load(folder)) if not only or test._testMethodName in only]
    if not tests:
        sys.exit(f"{folder} holds no tests of PyTorch's launcher: give PyTorch's sources")

    counts = {"passed": 0, "skipped": 0, "differs on purpose": 0}
    wrong = 0
    for test in tests:
        name, outcome = test._testMethodName, Outcome()
        test.run(outcome)
        traceback = outcome.failed.get(test, "")
        if outcome.skipped:
            said = "skipped"
        elif name in DIFFERS:
            said = "differs on purpose" if traceback else ""
        else:
            said = "" if traceback else "passed"
        if said:
            counts[said] += 1
        else:
            wrong += 1
        reason = outcome.skipped[0][1] if outcome.skipped else DIFFERS.get(name, "")
        print(f"{said or 'FAILED'}: {name}" + (f" ({reason})" if reason else ""), flush=True)
        if not said:
            print(traceback or "    it passes now: take it from the list of what differs")
    print(f"{len(tests)} tests of PyTorch's launcher beside PyTorch {torch.__version__}: "
          + ", ".join(f"{count} {what}" for what, count in counts.items()) + f", {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
