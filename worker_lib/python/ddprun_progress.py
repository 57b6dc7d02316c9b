"""Tells ddprun how far this worker is: for its terminal line, `ddpctl status`, metrics, the live page, systemd and
Kubeflow, and its reports of failures.

    import ddprun_progress

    for step, batch in enumerate(loader, start=1):
        ...
        ddprun_progress.report(step, total=len(loader), loss=loss.item())

One file without any dependency: import it where it is installed, or put a copy beside your program. Without ddprun,
and under any other launcher, report() does nothing. It costs about two microseconds and no system call: nobody is
woken, the numbers lie in memory that the agent looks at when somebody asks. Values are anything that float() takes;
reading one from a GPU waits for the GPU, so do that now and then only.

What it writes is documented in agent/README.md, "The worker link". One thread at a time; a process that is forked
after the first report has no part in it, and its reports do nothing.
"""

import mmap
import os
import socket
import stat
import struct
import time

__all__ = ["report"]

_PAGE_BYTES = 4096
_MAGIC = 0x4B4E494C50444400
_HEADER = struct.Struct("=QIIii")  # magic, version, bytes, worker's pid, agent's pid
_NOTES_AT = 64
_SLOT_AT, _SLOT_BYTES = 128, 64
_SLOT = struct.Struct("=qqqQIIq")  # step, total, step's time, collectives, phase, -, phase's time
_VALUES_AT, _VALUES_BYTES, _VALUES_MAX = 256, 320, 8
_VALUE = struct.Struct("=24sd")
_RUNNING = 2  # the phase
_PEER = struct.Struct("=iII")  # ucred

_link = None  # not looked for yet; False: there is none


class _Link:
    def __init__(self, page):
        self._page = page
        self._notes = memoryview(page)[_NOTES_AT:_NOTES_AT + 8].cast("Q")  # one store of eight bytes
        self._values = b""
        self._began = time.monotonic_ns()

    def note(self, step, total, values):
        number = self._notes[0] + 1
        slot = number % 2
        now = time.monotonic_ns()
        _SLOT.pack_into(self._page, _SLOT_AT + slot * _SLOT_BYTES, step, total, now, 0, _RUNNING, 0, self._began)
        if values:
            shown = list(values.items())[:_VALUES_MAX]
            self._values = struct.pack("=II", len(shown), 0) + b"".join(
                _VALUE.pack(name.encode("ascii", "replace"), float(value)) for name, value in shown)
        at = _VALUES_AT + slot * _VALUES_BYTES
        self._page[at:at + len(self._values)] = self._values
        self._notes[0] = number  # from here on the slot is the latest


def _descriptor(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else -1


# The variables outlive what they name: each step makes sure that this process is the worker which is meant.
def _open():
    page_fd, socket_fd = _descriptor("DDPRUN_LINK_PAGE_FD"), _descriptor("DDPRUN_LINK_FD")
    if page_fd < 0 or socket_fd < 0:
        return False
    try:
        about = os.fstat(page_fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size != _PAGE_BYTES:
            return False
        magic, version, size, worker, agent = _HEADER.unpack(os.pread(page_fd, _HEADER.size, 0))
        if magic != _MAGIC or version < 1 or size != _PAGE_BYTES or worker != os.getpid():
            return False
        with socket.socket(fileno=os.dup(socket_fd)) as link:
            credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if link.family != socket.AF_UNIX or link.type != socket.SOCK_SEQPACKET:
                return False
            if _PEER.unpack(credentials)[0] != agent:
                return False
        if not os.get_inheritable(socket_fd):  # another library of this process has it
            return False
        os.set_inheritable(socket_fd, False)
        page = mmap.mmap(page_fd, _PAGE_BYTES)
        os.close(page_fd)
        return _Link(page)
    except (OSError, ValueError, struct.error):
        return False


def _forget():
    global _link
    _link = False


os.register_at_fork(after_in_child=_forget)


def report(step, total=0, **values):
    """`step` steps of `total` (0: not known) are done; `values` are numbers that are worth watching, by name.

    At most eight values, with names of printable ASCII and at most 24 bytes. Without any, those of the last report
    stay.
    """
    global _link
    if _link is None:
        _link = _open()
    if _link:
        _link.note(step, total, values)
