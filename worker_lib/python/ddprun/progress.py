"""Tells ddprun how far this worker is: for its terminal line, `ddpctl status`, metrics, the live page, systemd and
Kubeflow, its reports of failures, and what a restart costs.

    from ddprun import progress

    for step, batch in enumerate(loader, start=1):
        ...
        progress.report(step, total=len(loader), loss=loss.item())

Count the steps of the whole training, if it can: after a restart ddprun compares them. Without a call, the steps of
PyTorch's optimizers are told (ddprun.hooks); the first call ends that.

Without ddprun, and under any other launcher, report() does nothing. It costs about two microseconds and no system call,
except for the first step and the one that a restart waits for: nobody else is woken, the numbers lie in memory that the
agent looks at when somebody asks. A value that has become NaN or infinite is told at once (--on-nan). Values are anything
that float() takes; reading one from a GPU waits for the GPU, so do that now and then only.

What it writes is documented in agent/README.md, "The worker link". One thread at a time; a process that is forked
after the first report has no part in it, and its reports do nothing.
"""

import _socket  # what socket is made of: nothing here needs the rest
import _thread
import os
import struct
import sys
import time

__all__ = ["report"]

_PAGE_BYTES = 4096
_MAGIC = 0x4B4E494C50444400
_HEADER = struct.Struct("=QIIiiiIq")  # magic, version, bytes, worker's pid, agent's pid, signal, wanted kind and step
_NOTES_AT = 64
_SLOT_AT, _SLOT_BYTES = 128, 64
_SLOT = struct.Struct("=qqqQIIq")  # step, total, step's time, collectives, phase, kind, phase's time
_VALUES_AT, _VALUES_BYTES, _VALUES_MAX = 256, 320, 8
_VALUE = struct.Struct("=24sd")
_MARKS_AT = 896
_BOUNDARIES_AT = 1056
_STATE, _UNTIL, _STEPS, _STEP_NS = (_BOUNDARIES_AT // 8 + i for i in (0, 1, 4, 5))
_PARKED_AT = _BOUNDARIES_AT + 4
_STATE_MASK = 0xFFFFFFFF  # the state has the lower half of its word, and whether this process is parked the upper one
_HOLD, _PARK = 1, 3
_FUTEX, _FUTEX_WAIT = 202, 0  # x86-64
_MARKS_SINCE, _REPLICAS_DIFFER_SINCE, _PARKS_SINCE, _NOT_FINITE_SINCE = 4, 6, 9, 10  # versions
_MESSAGE = struct.Struct("=IIiI")  # kind, version, pid, requests
_STEPPED, _REPLICAS_DIFFER, _PARKED, _NOT_FINITE = 4, 9, 10, 11  # kinds
_DIFFERENCE = struct.Struct("=qii224s")  # step, rank, other rank, sentence
_NAN = struct.Struct("=q24sd")  # step, name, number
_RUNNING = 2  # the phase
_PEER = struct.Struct("=iII")  # ucred
_NEVER, _AT_ONCE = 1 << 63, -1 << 63

PROGRAM, OPTIMIZER, COUNTED = 0, 1, 2  # where the number of a step is from

_link = None  # not looked for yet; False: there is none


class _Socket(_socket.socket):
    """The link's. The program may close all descriptors that it finds, and open files that get their numbers: each use asks
    whether the number is still the link's, and none is closed that is not."""

    def __init__(self, descriptor):
        super().__init__(fileno=descriptor)
        self._file = self._file_now()

    def _file_now(self):
        about = os.fstat(self.fileno())
        return about.st_dev, about.st_ino

    def is_there(self):
        try:
            return self._file_now() == self._file
        except OSError:
            return False

    def _check(self):
        if not self.is_there():
            raise OSError("the program has closed the link to ddprun")

    def send(self, *arguments):
        self._check()
        return super().send(*arguments)

    def sendmsg(self, *arguments):
        self._check()
        return super().sendmsg(*arguments)

    def recvmsg(self, *arguments):
        self._check()
        return super().recvmsg(*arguments)

    def close(self):
        if not self.is_there():
            self.detach()
        super().close()

    def __del__(self):
        self.detach()


class _Link:
    def __init__(self, page, socket, version, wanted_kind, wanted_step):
        self.page = page
        self._numbers = memoryview(page).cast("q")  # each is stored at once
        self.socket = socket
        self.version = version
        self.wanted_kind = wanted_kind if wanted_step > 0 else None
        self._wanted_step = wanted_step
        self._values = b""
        self._began = time.monotonic_ns()
        self._kind = None
        self._step = 0
        self._told_from = _AT_ONCE  # the agent is told of the next step from this one on
        self.is_reported = False  # by the program itself
        self.at_first_report = lambda: None
        self._steps, self._step_at = 0, 0
        self._not_finite = set()  # names of which the agent was told, and whose values have not been finite since
        self._told_since, self._told = 0, 0  # so many within the second that began then
        self._ends_by_hook = False  # steps end where the optimizer steps, on all ranks alike, whatever the program reports
        # Its use is a full barrier of memory: a number is there for the agent before this process looks whether it is to wait.
        self._barrier = _thread.allocate_lock()
        self.can_wait = os.uname().machine == "x86_64"
        self._can_park = self.can_wait and version >= _PARKS_SINCE

    def note(self, step, total, values):
        """A step as the program reports it."""
        if not self.is_reported:
            self.is_reported = True
            self.at_first_report()
            self._begin(PROGRAM)
        elif step < self._step and self._kind == PROGRAM:
            self._begin(COUNTED)  # numbers that begin anew with each epoch say nothing about the whole training
        self._step = step
        number = self._numbers[_NOTES_AT // 8] + 1
        slot = number % 2
        now = time.monotonic_ns()
        _SLOT.pack_into(self.page, _SLOT_AT + slot * _SLOT_BYTES, step, total, now, 0, _RUNNING, self._kind, self._began)
        shown = []
        if values:
            shown = [(name.encode("ascii", "replace"), float(value)) for name, value in list(values.items())[:_VALUES_MAX]]
            self._values = struct.pack("=II", len(shown), 0) + b"".join(_VALUE.pack(*each) for each in shown)
        at = _VALUES_AT + slot * _VALUES_BYTES
        self.page[at:at + len(self._values)] = self._values
        self._numbers[_NOTES_AT // 8] = number  # from here on the slot is the latest
        for name, value in shown:
            if value - value != 0 or self._not_finite:
                self._look_for_nan(step, name, value, now)
        if step >= self._told_from:
            self._mark(step)
        if self._can_park and not self._ends_by_hook:
            self._end_step(now)

    def begin_steps_by_hook(self):
        self._ends_by_hook, self._steps, self._step_at = True, 0, 0
        self._numbers[_STEPS] = 0

    def end_no_steps(self):
        """From here on this process is stopped wherever it is."""
        self._can_park = False
        self._numbers[_STEPS] = 0

    def end_step(self):
        if self._can_park:
            self._end_step(time.monotonic_ns())

    def _end_step(self, now):
        self._numbers[_STEP_NS] = now - self._step_at if self._step_at else 0
        self._step_at = now
        self._steps += 1
        if self.pass_boundary(_STEPS, self._steps) == _PARK and self._steps >= self._numbers[_UNTIL]:
            self._park()

    def pass_boundary(self, place, number):
        """Notes the number of a boundary on the page; returns what the agent has to say about it, 0 mostly. It waits while the agent
        holds this process."""
        self._numbers[place] = number
        with self._barrier:
            pass
        if not self._numbers[_STATE]:
            return 0
        while self._state() == _HOLD:
            self._await_change(_HOLD)
        return self._state()

    def _park(self):
        """All ranks are stopped between the same two steps: this one is there."""
        try:
            if not self._await_devices():
                return
        except Exception:
            return  # the program hears of it at its next call, as it would without this one
        struct.pack_into("=I", self.page, _PARKED_AT, 1)
        self._send(_PARKED, _PARKS_SINCE)
        while self._state() == _PARK:
            self._await_change(_PARK)

    @staticmethod
    def _await_devices():
        """False: what is queued there is being captured."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return True
        if cuda.is_current_stream_capturing():
            return False
        for device in range(cuda.device_count()):
            if device == cuda.current_device() or cuda.memory_reserved(device):
                cuda.synchronize(device)
        return True

    def _state(self):
        return self._numbers[_STATE] & _STATE_MASK

    def _await_change(self, state):
        import ctypes
        word = ctypes.c_uint32.from_buffer(self.page, _BOUNDARIES_AT)
        ctypes.CDLL(None).syscall(ctypes.c_long(_FUTEX), ctypes.byref(word), _FUTEX_WAIT, state, None, None, 0)

    def _send(self, kind, version, more=b""):
        if self.socket is None or self.version < version:
            return
        try:
            self.socket.send(_MESSAGE.pack(kind, version, os.getpid(), 0) + more, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
        except OSError:
            self.socket = None  # the agent has closed its end, or the program this one; the page stays

    def _look_for_nan(self, step, name, value, now):
        """Tells the agent of a value that is NaN or infinite: once, until it is finite again, and of at most eight within a second."""
        if value - value == 0:
            return self._not_finite.discard(name)
        if now - self._told_since >= 1_000_000_000:
            self._told_since, self._told = now, 0
        if name in self._not_finite or self._told == _VALUES_MAX:
            return
        self._told += 1
        self._not_finite.add(name)
        self._send(_NOT_FINITE, _NOT_FINITE_SINCE, _NAN.pack(step, name, value))

    def tell_difference(self, step, rank, other, sentence):
        """Tells the agent, which writes an event, that two ranks differ in what is equal on all ranks."""
        text = sentence.encode("utf-8", "replace")[:_DIFFERENCE.size - 17]
        self._send(_REPLICAS_DIFFER, _REPLICAS_DIFFER_SINCE, _DIFFERENCE.pack(step, rank, other, text))

    def counter(self, kind, step):
        """A function that notes the next step after `step`, and returns its number: as cheap as it can be."""
        self._begin(kind)
        for slot in range(2):
            _SLOT.pack_into(self.page, _SLOT_AT + slot * _SLOT_BYTES, step, 0, 0, 0, _RUNNING, kind, self._began)
        numbers, now, notes_at, slot_at = self._numbers, time.monotonic_ns, _NOTES_AT // 8, _SLOT_AT // 8
        number, told_from = numbers[notes_at], self._told_from

        def count():
            nonlocal step, number, told_from
            step += 1
            number += 1
            at = slot_at + 8 if number & 1 else slot_at
            numbers[at] = step
            numbers[at + 2] = at_ns = now()
            numbers[notes_at] = number
            if step >= told_from:
                self._mark(step)
                told_from = self._told_from
            if self._can_park:
                self._end_step(at_ns)
            return step
        return count

    def _begin(self, kind):
        self._kind = kind
        self._told_from = _AT_ONCE

    # The marks are written before the agent is told.
    def _mark(self, step):
        is_first = self._told_from == _AT_ONCE
        wanted = self._wanted_step
        self._told_from = wanted if is_first and step < wanted else _NEVER
        if self.socket is None or self.version < _MARKS_SINCE:
            return
        numbers, at, now = self._numbers, _MARKS_AT // 8, time.monotonic_ns()
        if is_first:
            struct.pack_into("=II", self.page, _MARKS_AT + 24, self._kind, 0)
            numbers[at] = step
            numbers[at + 1] = now
            numbers[at + 2] = 0
        if 0 < wanted <= step:
            numbers[at + 2] = now
        self._send(_STEPPED, _MARKS_SINCE)


def _descriptor(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else -1


# The variables outlive what they name: each step makes sure that this process is the worker which is meant.
def _open():
    import mmap
    import stat
    page_fd, socket_fd = _descriptor("DDPRUN_LINK_PAGE_FD"), _descriptor("DDPRUN_LINK_FD")
    if page_fd < 0 or socket_fd < 0:
        return False
    try:
        about = os.fstat(page_fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size != _PAGE_BYTES:
            return False
        magic, version, size, worker, agent, _, kind, step = _HEADER.unpack(os.pread(page_fd, _HEADER.size, 0))
        if magic != _MAGIC or version < 1 or size != _PAGE_BYTES or worker != os.getpid():
            return False
        if not os.get_inheritable(socket_fd) or not _leads_to(agent, socket_fd):  # another library of this process has it
            return False
        link = _Socket(socket_fd)
        os.set_inheritable(socket_fd, False)
        page = mmap.mmap(page_fd, _PAGE_BYTES)
        os.close(page_fd)
        _keep_for_ever(page)
        return _Link(page, link, version, kind, step)
    except (OSError, ValueError, struct.error):
        return False


# A mapping has a descriptor of its own, which its end would close, whatever has that number by then.
def _keep_for_ever(mapping):
    try:
        import ctypes
    except ImportError:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapping))


def _leads_to(agent, socket_fd):
    link = _socket.socket(fileno=socket_fd)
    try:
        peer = _PEER.unpack(link.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER.size))
        return link.family == _socket.AF_UNIX and link.type == _socket.SOCK_SEQPACKET and peer[0] == agent
    finally:
        link.detach()  # it may be another's


# A child finds by its pid that the link is another process's.
def _forget():
    global _link
    link, _link = _link, None
    if link and type(link) is _Link and link.socket is not None:
        link.socket.close()


os.register_at_fork(after_in_child=_forget)


def link_of_process():
    """The one link of this process; False: there is none."""
    global _link
    if _link is None:
        other = _of_hooks()
        _link = _open() if other is None else other.link_of_process()
    return _link


# The hooks load this file under a name of their own, because `ddprun` may be the program's.
def _of_hooks():
    other = sys.modules.get("_ddprun_progress")
    return None if other is None or other.__dict__ is globals() else other


def report(step, total=0, **values):
    """`step` steps of `total` (0: not known) are done; `values` are numbers that are worth watching, by name.

    At most eight values, with names of printable ASCII and at most 24 bytes. Without any, those of the last report
    stay.
    """
    link = link_of_process()
    if link:
        link.note(step, total, values)
