"""Memory in which a worker notes the state that no other rank has, so that the process which takes its place when it dies
can go on from there. The agent keeps its descriptor, and never looks into it.

Each record has a number and is whole or not there: its turn is odd while it is written. A process that is killed has made
all stores before the one it was killed at, so nothing else is needed to see that. One writer, one thread.

A record is a text, of at most so many bytes, and data of a fixed size, whose place is aligned for any type."""

import ctypes
import fcntl
import mmap
import os
import struct

_MAGIC = 0x34524D5250444400  # "\0DDPRMR4" in memory
_HEADER = struct.Struct("=QQQQ")  # magic, places, bytes of each one's data and of its text
_HEADER_BYTES = 64
_TURN = struct.Struct("=Q")
_HEAD = struct.Struct("=qQ")  # behind the turn: number, size of the text
_HEAD_BYTES = 64
_SEAL = getattr(fcntl, "F_ADD_SEALS", 1033)
_SEALS = 1 | 2 | 4  # no other seals, no shrinking, no growing


class Mirror:
    @classmethod
    def make(cls, places, data_bytes, text_bytes):
        data_bytes, text_bytes = _rounded(data_bytes), _rounded(text_bytes)
        descriptor = os.memfd_create("ddprun-mirror", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _HEADER_BYTES + places * (_HEAD_BYTES + data_bytes + text_bytes))
        fcntl.fcntl(descriptor, _SEAL, _SEALS)
        mirror = cls(descriptor, places, data_bytes, text_bytes)
        _HEADER.pack_into(mirror._memory, 0, _MAGIC, places, data_bytes, text_bytes)
        return mirror

    @classmethod
    def open(cls, descriptor, places, data_bytes):
        """The mirror of another process of this program; None: it is none, or one of other places or data."""
        header = os.pread(descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        magic, its_places, its_data, text_bytes = _HEADER.unpack(header)
        if (magic, its_places, its_data) != (_MAGIC, places, _rounded(data_bytes)):
            return None
        if os.fstat(descriptor).st_size != _HEADER_BYTES + places * (_HEAD_BYTES + its_data + text_bytes):
            return None
        return cls(descriptor, places, its_data, text_bytes)

    def __init__(self, descriptor, places, data_bytes, text_bytes):
        self._descriptor, self.places, self._data_bytes, self.text_bytes = descriptor, places, data_bytes, text_bytes
        self._file = _file_of(descriptor)
        self._memory = mmap.mmap(descriptor, _HEADER_BYTES + places * (_HEAD_BYTES + data_bytes + text_bytes))
        # It has a descriptor of its own, which its end would close, whatever has that number by then.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))

    @property
    def descriptor(self):
        """None: the program has closed it, and another file may have its number."""
        try:
            return self._descriptor if _file_of(self._descriptor) == self._file else None
        except OSError:
            return None

    def _at(self, place):
        return _HEADER_BYTES + place * (_HEAD_BYTES + self._data_bytes + self.text_bytes)

    def data(self, place):
        """The memory of that record's data; to be written by `copy` of write()."""
        at = self._at(place) + _HEAD_BYTES
        return memoryview(self._memory)[at:at + self._data_bytes]

    def write(self, place, number, text, copy=None):
        """Calls `copy` for the data. False: there is no room for the text, and nothing was written."""
        if len(text) > self.text_bytes:
            return False
        at, memory = self._at(place), self._memory
        turn = _TURN.unpack_from(memory, at)[0] | 1
        _TURN.pack_into(memory, at, turn)
        _HEAD.pack_into(memory, at + _TURN.size, number, len(text))
        text_at = at + _HEAD_BYTES + self._data_bytes
        memory[text_at:text_at + len(text)] = text
        if copy is not None:
            copy()
        _TURN.pack_into(memory, at, turn + 1)
        return True

    def read(self, place, number):
        """(text, data); None: it was not written, or not whole."""
        at = self._at(place)
        [turn] = _TURN.unpack_from(self._memory, at)
        its_number, size = _HEAD.unpack_from(self._memory, at + _TURN.size)
        if turn == 0 or turn % 2 != 0 or its_number != number or size > self.text_bytes:
            return None
        at += _HEAD_BYTES
        text_at = at + self._data_bytes
        return self._memory[text_at:text_at + size], self._memory[at:text_at]

    def copy_from(self, other):
        """All its records, into this one, which no other process has yet."""
        for place in range(other.places):
            at, its_at = self._at(place), other._at(place)
            its_end = its_at + _HEAD_BYTES + other._data_bytes + other.text_bytes
            self._memory[at:at + its_end - its_at] = other._memory[its_at:its_end]


def _rounded(size):
    return (size + 63) // 64 * 64


def _file_of(descriptor):
    about = os.fstat(descriptor)
    return about.st_dev, about.st_ino
