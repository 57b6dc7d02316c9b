"""What a worker that can be replaced in place says to its agent, and hears from it, over the link of ddprun.progress
(agent/README.md, "The worker link"). Used by ddprun.recovery; the main thread calls, and one more thread listens."""

import _socket
import _thread
import ctypes
import os
import select
import struct
import sys
import threading

from ddprun import progress

_SINCE = 5  # version of the link
_MESSAGE = struct.Struct("=IIiI")  # kind, version, pid, requests
_ABOUT_GENERATION = struct.Struct("=IIiIiI")  # …, rank, generation
_HELLO, _GROUP_BROKEN, _MIRROR, _REGROUPED, _COMMITTED, _CANNOT_RECOVER = 1, 3, 5, 6, 7, 8
_REGROUP, _TAKE_PLACE = 16, 17
_CAN_RECOVER, _IS_PREPARED = 4, 8
_WHY_BYTES = 240

_COMMITTED_AT, _GENERATION_AT, _HOLDS_LOCK_AT, _LOCK_AT, _LOCK_BYTES = 928, 936, 940, 944, 64
_SHARED, _ROBUST = 1, 1  # of pthread_mutexattr
_NONE_IS_LEFT = 1 << 32


class RecoveryLink:
    @staticmethod
    def of_process():
        """None: there is no agent, or none that replaces workers."""
        link = progress.link_of_process()
        if not link or getattr(link, "version", 0) < _SINCE or link.socket is None:
            return None
        return RecoveryLink(link)

    def __init__(self, link):
        self._page, self._socket = link.page, link.socket
        self._words = memoryview(link.page).cast("I")
        self._committed = ctypes.c_int64.from_buffer(link.page, _COMMITTED_AT)  # keeps the page mapped
        self._has_told_commit = True
        self._changed = threading.Condition()
        self.wanted = 0  # the newest generation that the agent has named
        self.is_broken = False  # and is not made anew

    # ---- to the agent

    def _send(self, message, *descriptors):
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", each)) for each in descriptors]
        try:
            self._socket.sendmsg([message], ancillary, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the agent is gone, and soon so is this process; or the program has closed the link

    def _say(self, kind, requests=0, *descriptors):
        self._send(_MESSAGE.pack(kind, _SINCE, os.getpid(), requests), *descriptors)

    def hold_death_lock(self):
        """From here on the kernel tells the agent of the end of this thread, the main one, as soon as it ends."""
        library = ctypes.CDLL(None)
        attributes = ctypes.create_string_buffer(_LOCK_BYTES)
        lock = (ctypes.c_char * _LOCK_BYTES).from_buffer(self._page, _LOCK_AT)  # keeps the page mapped
        self._lock = lock
        library.pthread_mutexattr_init(attributes)
        library.pthread_mutexattr_setpshared(attributes, _SHARED)
        library.pthread_mutexattr_setrobust(attributes, _ROBUST)
        if library.pthread_mutex_init(lock, attributes) == 0 and library.pthread_mutex_lock(lock) == 0:
            _kept.append(lock)
            self._words[_HOLDS_LOCK_AT // 4] = 1

    def send_mirror(self, mirror):
        self._say(_MIRROR, 0, mirror)

    def offer(self, mirror):
        self.send_mirror(mirror)
        self._say(_HELLO, _CAN_RECOVER)

    def withdraw(self):
        self._say(_HELLO, 0)

    def refuse(self, why):
        text = why.encode("utf-8", "replace")[:_WHY_BYTES - 1]
        self._send(_MESSAGE.pack(_CANNOT_RECOVER, _SINCE, os.getpid(), 0) + text.ljust(_WHY_BYTES, b"\0"))

    def regrouped(self, generation):
        self._words[_GENERATION_AT // 4] = generation
        self._say(_REGROUPED, generation)
        self._has_told_commit = False

    def committed(self, steps):
        self._committed.value = steps

    def tell_commit(self, generation):
        """Of the first step of a generation."""
        if generation > 0 and not self._has_told_commit:
            self._has_told_commit = True
            self._say(_COMMITTED, generation)

    # ---- from the agent

    def await_place(self):
        """In a prepared standby: returns when it is the worker of its rank, with that one's streams; gives the descriptor of that
        one's mirror."""
        self._say(_HELLO, _IS_PREPARED)
        while True:
            data, passed = self._receive()
            if not data:
                os._exit(0)
            if len(data) == _ABOUT_GENERATION.size and len(passed) == 3:
                kind, _, _, _, _, generation = _ABOUT_GENERATION.unpack(data)
                if kind == _TAKE_PLACE:
                    break
            for each in passed:
                os.close(each)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for descriptor, stream in zip((1, 2), passed):
            os.dup2(stream, descriptor)
            os.close(stream)
        self.wanted = generation
        return passed[2]

    def _receive(self):
        space = _socket.CMSG_SPACE(4 * 4)
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(512, space, _socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                select.select([self._socket], [], [])
            except OSError:
                return b"", []
        return data, [number for _, _, passed in ancillary
                      for number, in struct.iter_unpack("=i", passed[:len(passed) // 4 * 4])]

    def listen(self, break_calls):
        """Starts the thread; it calls `break_calls` with the generation before which all groups are broken."""
        _thread.start_new_thread(self._listen, (break_calls,))

    def _listen(self, break_calls):
        while True:
            data, _ = self._receive()
            is_closed_here = not data and not self._socket.is_there()
            kind = _MESSAGE.unpack_from(data)[0] if len(data) >= _MESSAGE.size else 0
            with self._changed:
                if not data or kind == _GROUP_BROKEN:
                    self.is_broken = True
                elif kind == _REGROUP and len(data) == _ABOUT_GENERATION.size:
                    self.wanted = max(self.wanted, _ABOUT_GENERATION.unpack(data)[5])
                else:
                    continue
                self._changed.notify_all()
            if is_closed_here:  # by the program, whose group is as good as before
                return
            break_calls(_NONE_IS_LEFT if self.is_broken else self.wanted)
            if self.is_broken:
                return

    def await_news(self, generation, seconds):
        """Whether the agent names a newer generation; it has so long, or says that there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_broken or self.wanted > generation, seconds)
            return not self.is_broken and self.wanted > generation


_kept = []  # a lock that is held stays in the kernel's list of its thread
