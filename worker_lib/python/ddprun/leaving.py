"""Whether all ranks are to leave now, because the job is preempted: ddprun.should_leave(), and the step boundaries of
ddprun.recoverable().

Every rank counts its boundaries, and notes the number on the page of its link (link::Boundaries in
rendezvous/common/worker_abi/worker_link.h). When a node is preempted, the agents hold the ranks at their next boundary, see
which one the foremost rank has passed, and let all go on until the one behind it. A rank that is held waits for its agent
alone, for milliseconds. Ranks do not call each other for it.
"""

import os
import struct
import sys
import time

from ddprun import progress

_AT = 1056  # where the boundaries are on the page
_LEAVE_AT, _PASSED = _AT // 8 + 1, _AT // 8 + 2
_TAKES_PART_AT, _HAS_LEFT_AT = _AT + 24, _AT + 28
_LEAVE = 2  # a state
_SIGNAL_AT = 24  # that announces a preemption, in the page's header
_SINCE = 8  # version of the link

_boundaries = None  # not looked for yet; False: there are none
_calls = 0
_counted = None  # a function that returns how many boundaries this rank has passed; None: the calls are counted


class _Boundaries:
    def __init__(self, link):
        self._link, self._page = link, link.page
        self._numbers = memoryview(link.page).cast("q")  # each number is stored at once
        struct.pack_into("=I", self._page, _TAKES_PART_AT, 1)
        _ignore_notice(struct.unpack_from("=i", self._page, _SIGNAL_AT)[0])

    def leaves_at(self, boundary):
        if self._link.pass_boundary(_PASSED, boundary) != _LEAVE or boundary < self._numbers[_LEAVE_AT]:
            return False
        struct.pack_into("=I", self._page, _HAS_LEFT_AT, 1)
        return True


def _ignore_notice(number):
    """Schedulers send SIGUSR1 and SIGUSR2 to all processes of a job, and this one hears of the preemption by its link."""
    import signal
    if number in (signal.SIGUSR1, signal.SIGUSR2) and signal.getsignal(number) == signal.SIG_DFL:
        try:
            signal.signal(number, signal.SIG_IGN)
        except ValueError:
            pass  # on another thread than the main one


def _open():
    global _boundaries
    _boundaries = False
    link = progress.link_of_process()
    if link and link.version >= _SINCE:
        if not hasattr(link, "pass_boundary"):  # it was opened by the hooks of an agent of an earlier release
            link = progress._Link(link.page, None, link.version, None, 0)
        if link.can_wait:
            _boundaries = _Boundaries(link)
        else:
            print("ddprun: should_leave() is always false: it was not tried on this architecture", file=sys.stderr, flush=True)


def leaves_at(boundary):
    """Whether this rank, which has passed so many boundaries with this one, is to leave. Equal on all ranks at the same number. It may
    wait for the agents."""
    if _boundaries is None:
        _open()
    return bool(_boundaries) and _boundaries.leaves_at(boundary)


def count_by(counted):
    """From here on boundaries are counted by this function, which returns the number of the last one."""
    global _counted
    _counted = counted


def should_leave():
    """ddprun.should_leave()."""
    global _calls
    if _counted is not None:
        return leaves_at(_counted())
    _calls += 1
    return leaves_at(_calls)


def end():
    """Raises SystemExit(0), behind the ranks' last call."""
    # A thread of Gloo's lets go of the call's tensors after the call has returned, and needs the interpreter for that; PyTorch 2.11
    # aborts the process if the interpreter ends meanwhile. There is nothing to wait for.
    time.sleep(0.1)
    raise SystemExit(0)


def _forget():
    global _boundaries
    _boundaries = False  # a process that is forked is no rank


os.register_at_fork(after_in_child=_forget)
