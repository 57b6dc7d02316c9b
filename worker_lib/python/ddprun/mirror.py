"""Memory in which a worker notes the state that no other rank has, so that the process which takes its place when it dies
can go on from there. The agent keeps its descriptor, and never looks into it.

Each record has a number and is whole or not there: its turn is odd while it is written. A process that is killed has made
all stores before the one it was killed at, so nothing else is needed to see that. One writer, one thread.

A record is a text and blocks of memory, written in C: between two steps of a training nothing of the interpreter is in the
processor's caches, and the same in Python takes 50 microseconds."""

import ctypes
import fcntl
import mmap
import os
import struct

_MAGIC = 0x32524D5250444400  # "\0DDPRMR2" in memory
_HEADER = struct.Struct("=QQQ")  # magic, places, bytes of each
_HEADER_BYTES = 64
_HEAD = struct.Struct("=QqQ")  # turn, number, size
_HEAD_BYTES = 64
_TEXT_SIZE = struct.Struct("=Q")
_SEAL = getattr(fcntl, "F_ADD_SEALS", 1033)
_SEALS = 1 | 2 | 4  # no other seals, no shrinking, no growing

# Of the library that the agent's hooks have loaded (worker_lib/c10d/in_place_module.cpp); None: these are of another version.
_library = ctypes.PyDLL(None)
_write_record = getattr(_library, "ddprun_write_record", None)
copy_blocks = getattr(_library, "ddprun_copy_blocks", None)
gloo_calls = getattr(_library, "ddprun_gloo_calls", None)
is_possible = None not in (_write_record, copy_blocks, gloo_calls)
if is_possible:
    _write_record.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p)
    copy_blocks.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    copy_blocks.restype = None
    gloo_calls.restype = ctypes.POINTER(ctypes.c_uint64)


class _Block(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_uint64)]


class _Blocks(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("count", ctypes.c_uint64)]


class Blocks:
    """Memory that is copied into records: pairs of address and size."""

    def __init__(self, blocks):
        self.size = sum(size for _, size in blocks)
        self._all = (_Block * len(blocks))(*blocks)
        self._parts = []

    def part(self, begin, end=None):
        """Some of them, as Mirror.write() and copy_blocks() take them, as long as this object lives."""
        first, count = ctypes.addressof(self._all) + begin * ctypes.sizeof(_Block), len(self._all[begin:end])
        self._parts.append(_Blocks(first, count))
        return ctypes.addressof(self._parts[-1])


_none = Blocks([])
NO_BLOCKS = _none.part(0)


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
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _at(self, place):
        return _HEADER_BYTES + place * (_HEAD_BYTES + self.size)

    def write(self, place, number, text, blocks):
        """False: there is no room for it. `blocks` is what Blocks.part() returns."""
        return _write_record(self._base, place, number, text, len(text), blocks) != 0

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
