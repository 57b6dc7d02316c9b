"""The NCCL communicators of a process group whose ranks are replaced in place: which of them can be, and how their calls are ended.
Used by groups.py alone; loaded with the first group over NCCL.

A kernel of NCCL waits for a dead rank without an end, and PyTorch raises nothing where a kernel was ended: the host goes on with
what the kernel has left. Hence the order of a replacement:

1. The agent has named a generation, and all ranks, the new one among them, have said at the store that they know it. Only then
   does any rank end its calls: a kernel that is ended tells its neighbours that their data is there, so theirs end with garbage,
   too. A thread calls ncclCommRevoke, which ends the kernels at once and then takes a second, since NCCL joins threads that poll.
2. The main thread awaits the device, and notices that its step is lost: before the optimizer's step, or at the step's end
   (recovery.py).
3. When all ranks have said at the store that their devices are idle, the communicators are aborted, which frees them. Before
   that a rank's kernels may still use the memory of its peers.
4. The group is made anew.

With DDPRUN_NCCL_FREE_LATER=1, 4 does not wait for the abort in 3. Whether that is safe is not known from a GPU yet.

Sources: PyTorch 2.11's ProcessGroupNCCL.cpp; NCCL 2.28.9's init.cc and proxy.cc.
"""

import contextlib
import ctypes
import datetime
import os
import sys
import threading

_VERSION_MIN = (2, 28, 9)  # has ncclCommRevoke, and mends hangs and errors that aborts leave in the versions before
_FIRST_WITH_NVLS = 9  # compute capability
_LOOKS_AGAIN = datetime.timedelta(milliseconds=50)  # whether a newer generation is named, whose ranks are awaited instead
# A device that is not idle so long after its calls were ended has a kernel that had not begun.
_IDLE_LIMIT_S = 5

# PyTorch reads them when a group is made. Its threads end a process in which a call has failed or is late, minutes after that
# also where the group was aborted meanwhile. The agent and --hang-timeout do that for ranks that can be replaced.
_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
}


def why_not():
    """Why ranks over NCCL cannot be replaced in place here; None: they can."""
    cuda = sys.modules["torch"].cuda
    version = cuda.nccl.version()
    if version < _VERSION_MIN:
        return (f"its NCCL is {'.'.join(map(str, version))}, and calls can be ended from "
                f"{'.'.join(map(str, _VERSION_MIN))} on: install a newer one")
    if os.environ.get("NCCL_COLLNET_ENABLE", "0") != "0":
        return "NCCL_COLLNET_ENABLE is set, and the switch's resources cannot be taken back from a dead rank: unset it"
    has_nvls = cuda.get_device_capability()[0] >= _FIRST_WITH_NVLS and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    if has_nvls and os.environ.get("NCCL_NVLS_ENABLE") != "0":
        return ("NCCL may add up in the NVSwitch (NVLS), whose memory cannot be taken back from a dead rank: set NCCL_NVLS_ENABLE=0 "
                "when the job is started")
    return None


@contextlib.contextmanager
def variables():
    """While a group is made whose ranks can be replaced."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(_VARIABLES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Communicator:
    """The communicator of a process group over NCCL. The main thread makes it."""

    def __init__(self, backend):
        self._backend = backend
        self._pointer = ctypes.c_void_p(backend._comm_ptr())
        self._revoke = ctypes.CDLL("libnccl.so.2").ncclCommRevoke
        self._thread = None
        self._meet = None  # a function
        self._is_idle, self._may_free = threading.Event(), threading.Event()

    def calls(self):
        """Collectives that this rank has called."""
        return self._backend._get_sequence_number_for_group()

    def end_calls(self, meet):
        """On any thread, for each generation; the caller lets no two threads call at once. Its kernels end when all ranks know the
        last of these generations: `meet(limit)` says that this rank does, and returns whether all others have within that time."""
        self._meet = meet
        if self._thread is None:
            self._thread = threading.Thread(target=self._end, name="ddprun-nccl", daemon=True)
            self._thread.start()

    def _end(self):
        while not self._meet(_LOOKS_AGAIN):
            pass
        self._revoke(self._pointer, 0)
        # At its end NCCL lets kernels run again. If one has not begun by then, it is ended by the abort alone.
        if self._is_idle.wait(_IDLE_LIMIT_S):
            self._may_free.wait()
        self._backend.abort()

    def note_idle(self):
        """Its device is idle: after end_calls(), on the main thread."""
        self._is_idle.set()

    def free(self):
        """The devices of all ranks are idle; its calls were ended."""
        self._may_free.set()
        if os.environ.get("DDPRUN_NCCL_FREE_LATER") != "1":
            self._thread.join()

    def is_freed(self):
        return self._thread is None or not self._thread.is_alive()
