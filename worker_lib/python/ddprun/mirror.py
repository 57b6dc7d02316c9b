"""Memory in which a worker notes the state that no other rank has, so that the process which takes its place when it dies
can go on from there. The agent keeps its descriptor, and never looks into it.

Each record has a number and is whole or not there: its turn is odd while it is written. A process that is killed has made
all stores before the one it was killed at, so nothing else is needed to see that. One writer, one thread."""

import ctypes
import fcntl
import mmap
import os
import struct

_MAGIC = 0x50524D5250444400  # "\0DDPRMRP" in memory
_HEADER = struct.Struct("=QQQ")  # magic, places, bytes of each
_HEADER_BYTES = 64
_HEAD = struct.Struct("=QqQ")  # turn, number, size
_HEAD_BYTES = 64
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
        self.descriptor, self.places, self.size = descriptor, places, size
        self._memory = mmap.mmap(descriptor, _HEADER_BYTES + places * (_HEAD_BYTES + size))
        self._numbers = memoryview(self._memory).cast("q")
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _at(self, place):
        return _HEADER_BYTES + place * (_HEAD_BYTES + self.size)

    def write(self, place, number, parts, blocks, size):
        """`parts` are bytes; `blocks` are pairs of address and size, whose bytes follow; `size` is all of them, at most
        Mirror.size."""
        at, memory, move = self._at(place), self._memory, ctypes.memmove
        head = at >> 3
        turn = self._numbers[head] | 1
        self._numbers[head] = turn
        self._numbers[head + 1] = number
        self._numbers[head + 2] = size
        at += _HEAD_BYTES
        for part in parts:
            end = at + len(part)
            memory[at:end] = part
            at = end
        at += self._base
        for address, length in blocks:
            move(at, address, length)
            at += length
        self._numbers[head] = turn + 1

    def read(self, place, number):
        """None: it was not written, or not whole."""
        at = self._at(place)
        turn, its_number, size = _HEAD.unpack_from(self._memory, at)
        if turn == 0 or turn % 2 != 0 or its_number != number or size > self.size:
            return None
        at += _HEAD_BYTES
        return self._memory[at:at + size]

    def copy_from(self, other):
        """All its records."""
        for place in range(other.places):
            turn, number, size = _HEAD.unpack_from(other._memory, other._at(place))
            record = other.read(place, number)
            if record is not None:
                self.write(place, number, [record], [], size)
