"""A rank over NCCL is killed: until all ranks have committed the next step. On the fake GPU of the tests, whose NCCL takes a second
to abort, as the real one does: in the safe order, which waits for that, and in the other one."""

import os
import tempfile

from benchmarks.programs import BUILD, ROOT
from benchmarks.replace import OfASize, PythonTraining, ddprun_with
from benchmarks.table import Row

RANKS, ABORT_MS = 3, 1000
RECOVERY_MS = 150  # beside the abort
LIBRARIES = BUILD / "fake_gpu"


class OnFakeGpu:
    """A job there."""

    def start(self):
        self.environment.update({"FAKE_NCCL_ABORT_MS": str(ABORT_MS), "OVER_NCCL": "1", "OMP_WAIT_POLICY": "passive"})
        super().start()


class Cpp(OnFakeGpu, OfASize):
    name = "C++"

    def __init__(self, folder):
        super().__init__(folder, "nccl", RANKS, parameter_mb=1)

    def start(self):
        self.command = [ROOT / "tests/support/fake_gpu/run", LIBRARIES,
                        *ddprun_with(self.folder, RANKS, standby=str(RANKS)), *self.program("nccl")]
        super().start()


class Python(OnFakeGpu, PythonTraining):
    name = "Python"

    def __init__(self, folder):
        super().__init__(folder, ddprun_with(folder, RANKS, options=(), standby=str(RANKS)), "nccl", RANKS)

    def start(self):
        its = ("libcudart.so.13", "libcuda.so.1", "libnccl.so.2")
        self.environment["LD_PRELOAD"] = ":".join(str(LIBRARIES / each) for each in its)
        super().start()


def bench_replace_nccl(quick):
    for kind in (Cpp, Python):
        for order, later, limit in (("freed meanwhile", "1", RECOVERY_MS), ("freed before", "0", RECOVERY_MS + ABORT_MS)):
            row = Row(f"{kind.name} over NCCL on the fake GPU, {RANKS} ranks, old communicators {order} (1 s): SIGKILL of one until "
                      "all have committed the next step", "ms")
            os.environ["DDPRUN_NCCL_FREE_LATER"] = later
            with tempfile.TemporaryDirectory() as folder, kind(folder) as training:
                for _ in range(3 if quick else 30):
                    row.add("ddprun", training.kill_in_place())
            del os.environ["DDPRUN_NCCL_FREE_LATER"]
            row.bar(f"≤ {limit} ms", row.median("ddprun"), row.median("ddprun") <= limit)
            slowest = max(row.samples["ddprun"])
            row.bar(f"slowest ≤ {limit + RECOVERY_MS} ms", slowest, slowest <= limit + RECOVERY_MS)
            yield row
