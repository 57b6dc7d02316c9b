"""PyTorch's own tests of torch.distributed and DDP over Gloo, with ddprun.torch's shm in Gloo's place.

They come with torch's package (torch.testing._internal.distributed.distributed_test), and no part of them is kept here.
A test that fails over shm is run over Gloo, too: what fails there as well is no difference. What differs is in DIFFERS with
its reason; a test of that list that passes is a failure as well, so that the list stays true. One thing is not asked for:
that each collective leaves an event "gloo:…" in a profile, see NO_EVENTS. Tests whose names are of GPUs or of another
backend are left out.

usage: pytorch_distributed_tests.py PYTHON_FOLDER [--if-full] [--ranks=N] [TEST…]
                                                    (needs expecttest, as PyTorch's tests do; else exit code 77)
"""

import argparse
import collections
import importlib.util
import os
import sys
import unittest

NO_EVENTS = "shm writes no events of its own into a profile"
OTHER_WORDS = "the error has other words than Gloo's; the test looks for Gloo's and ends there"
DIFFERS = {
    **{f"test_{messages}_{profiler}_profiler": NO_EVENTS
       for messages in ("isend", "send_recv", "send_recv_any_source", "send_recv_with_tag")
       for profiler in ("autograd", "torch")},
    "test_barrier_timeout_full_group": OTHER_WORDS,
    "test_monitored_barrier_gloo": OTHER_WORDS,
    "test_monitored_barrier_gloo_rank_0_timeout": OTHER_WORDS,
    "test_monitored_barrier_gloo_subgroup": OTHER_WORDS,
}
OF_OTHER_BACKENDS = ("nccl", "cuda", "gpu", "ucc", "mpi")


def load(ranks):
    """The class with PyTorch's tests. They read these variables as they are imported."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(ranks))
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test as theirs

    class OverShm(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
        backend = "shm"

        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *arguments, **more):
            if cls.backend == "shm":
                import ddprun.torch
                ddprun.torch.replace_gloo()
                theirs.PROFILING_SUPPORTED_BACKENDS = []  # so that the results are compared all the same
            super()._run(*arguments, **more)

        def run_test(self, name, pipe):
            found = dist.group.WORLD._get_backend(torch.device("cpu")).name()
            assert found == self.backend, f"the test runs over {found}"
            super().run_test(name, pipe)

    class OverGloo(OverShm):
        backend = "gloo"

    return OverShm, OverGloo


class Outcome(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.traceback = ""

    def addFailure(self, test, err):
        self.traceback = self._exc_info_to_string(err, test)

    addError = addFailure


def run(kind, name):
    outcome = Outcome()
    kind.setUpClass()
    kind(name).run(outcome)
    kind.tearDownClass()
    return outcome


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--if-full", action="store_true", help="skipped unless DDPRUN_TEST_FULL is set")
    parser.add_argument("tests", nargs="*")
    options = parser.parse_args()
    if options.if_full and not os.environ.get("DDPRUN_TEST_FULL"):
        print("skipped: only with --full")
        return 77
    if importlib.util.find_spec("expecttest") is None:
        print(f"skipped: expecttest is not in {sys.prefix}; scripts/setup installs it")
        return 77
    sys.argv[1:] = []  # PyTorch's test utilities read it
    sys.path.insert(0, options.folder)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    over_shm, over_gloo = load(options.ranks)
    import torch
    names = options.tests or [name for name in unittest.defaultTestLoader.getTestCaseNames(over_shm)
                              if not any(other in name.lower() for other in OF_OTHER_BACKENDS)]
    counts = collections.Counter()
    for name in names:
        outcome, reason = run(over_shm, name), ""
        if outcome.skipped:
            said, reason = "skipped", outcome.skipped[0][1]
        elif not outcome.traceback:
            said = "FAILED" if name in DIFFERS else "passed"
            outcome.traceback = "    it passes now: take it from the list of what differs"
        elif name in DIFFERS:
            said, reason = "differs", DIFFERS[name]
        else:
            said = "fails over Gloo as well" if run(over_gloo, name).traceback else "FAILED"
        counts[said] += 1
        print(f"{said}: {name}" + (f" ({reason})" if reason else ""), flush=True)
        if said == "FAILED":
            print(outcome.traceback, flush=True)
    print(f"{len(names)} of PyTorch {torch.__version__}'s tests over Gloo, {options.ranks} ranks over shm: "
          + ", ".join(f"{count} {said}" for said, count in sorted(counts.items())))
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
