"""Memory in which a worker notes the state that no other rank has, so that the process which takes its place when it dies
can go on from there. The agent keeps its descriptor, and never looks into it.

Each record has a number and is whole or not there: its turn is odd while it is written. A process that is killed has made
all stores before the one it was killed at, so nothing else is needed to see that. One writer, one thread.

A record is a text and blocks of memory, written in C (ddprun.in_place)."""

import ctypes
import fcntl
import mmap
import os
import struct

from ddprun import in_place

_MAGIC = 0x33524D5250444400  # "\0DDPRMR3" in memory
_HEADER = struct.Struct("=QQQ")  # magic, places, bytes of each
_HEADER_BYTES = 64
_HEAD = struct.Struct("=QqQ")  # turn, number, size
_HEAD_BYTES = 64
_TEXT_SIZE = struct.Struct("=Q")
_SEAL = getattr(fcntl, "F_ADD_SEALS", 1033)
_SEALS = 1 | 2 | 4  # no other seals, no shrinking, no growing


class Mirror:
    @classmethod
    def make(cls, places, size):
        """With room for so many records of so many bytes."""
        size = (size + 63) // 64 * 64
        descriptor = os.memfd_create("ddprun-mirror", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _HEADER_BYTES + places * (_HEAD_BYTES + size))
        fcntl.fcntl(descriptor, _SEAL, _SEALS)
        mirror = cls(descriptor, places, size)
        _HEADER.pack_into(mirror._memory, 0, _MAGIC, places, size)
        return mirror

    @classmethod
    def open(cls, descriptor):
        """Of another process of this program; None: it is none."""
        header = os.pread(descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        magic, places, size = _HEADER.unpack(header)
        if magic != _MAGIC or os.fstat(descriptor).st_size != _HEADER_BYTES + places * (_HEAD_BYTES + size):
            return None
        return cls(descriptor, places, size)

    def __init__(self, descriptor, places, size):
        self._descriptor, self.places, self.size = descriptor, places, size
        self._file = _file_of(descriptor)
        self._memory = mmap.mmap(descriptor, _HEADER_BYTES + places * (_HEAD_BYTES + size))
        # It has a descriptor of its own, which its end would close, whatever has that number by then.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @property
    def descriptor(self):
        """None: the program has closed it, and another file may have its number."""
        try:
            return self._descriptor if _file_of(self._descriptor) == self._file else None
        except OSError:
            return None

    def _at(self, place):
        return _HEADER_BYTES + place * (_HEAD_BYTES + self.size)

    def write(self, place, number, text, blocks):
        """False: there is no room for it. `blocks` is an in_place.types.Blocks."""
        return in_place.types.write_record(self.address, place, number, text, blocks)

    def read(self, place, number):
        """(text, the contents of the blocks); None: it was not written, or not whole."""
        at = self._at(place)
        turn, its_number, size = _HEAD.unpack_from(self._memory, at)
        if turn == 0 or turn % 2 != 0 or its_number != number or size > self.size:
            return None
        at += _HEAD_BYTES
        [text_size] = _TEXT_SIZE.unpack_from(self._memory, at)
        text_at, blocks_at = at + _TEXT_SIZE.size, at + _TEXT_SIZE.size + text_size
        return self._memory[text_at:blocks_at], self._memory[blocks_at:at + size]

    def copy_from(self, other):
        """All its records, into this one, which nobody has yet."""
        for place in range(other.places):
            at, from_at = self._at(place), other._at(place)
            end = from_at + _HEAD_BYTES + other.size
            self._memory[at:at + end - from_at] = other._memory[from_at:end]


def _file_of(descriptor):
    about = os.fstat(descriptor)
    return about.st_dev, about.st_ino
