"""ddprun.keep() and ddprun.kept(): snapshots in the agent's memory, which outlive the workers (worker_lib/README.md,
"Snapshots in memory, in Python").

    keep(step, state, shared):   text = structure of `shared`, data = its tensors     (equal on all ranks: each writes a share)
                                 own part = structure of `state`, then its tensors    (of this rank alone)

A structure is the state, pickled, with a place where each tensor was; the bytes of the tensors are copied
once, from where they are into the memory. Where what lies there is known in C alone (worker_lib/process/snapshot_module.h),
whose library comes with the agent.
"""

import array
import collections
import ctypes
import functools
import hashlib
import io
import itertools
import json
import math
import operator
import os
import pickle
import sys

import torch
import torch.distributed as dist

from ddprun import progress

_ALIGNMENT = 64
_OWN_HEADER = 64  # bytes before the structure of an own part, which begin with its size
_WHY_BYTES = 512
_HELD_BYTES = 32 << 20  # of copies that are made because a tensor is not on the CPU, or has gaps
# Of a tensor in a standby that prepares for a rank's place: larger ones come from the other ranks, and are zero until then.
_SMALL_BYTES = 64 << 10
_BEGUN_ANEW, _REFUSED = 1, -1  # snapshot_module.h
_DATA, _TEXT, _OWN = 0, 1, 2

Kept = collections.namedtuple("Kept", ("step", "state", "shared"))
Kept.__doc__ = """What ddprun.kept() found; `state` and `shared` as they were given to ddprun.keep(), on the CPU."""


# ---- a state, taken apart

class _At:
    """(_At, number): where a tensor was, the number of those before it. Of the types that pickle in C."""


class _HasTensors(Exception):
    pass


class _Pickler(pickle.Pickler):
    """Of what has no tensors; a third of the time that torch.save() takes."""

    def reducer_override(self, value):
        if isinstance(value, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            raise _HasTensors
        return NotImplemented


def _is_plain(tensor):
    """Its bytes are its elements."""
    return tensor.layout is torch.strided and (tensor.is_cpu or tensor.is_cuda) and not (
        tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _take_apart(state, takes=None):
    """(the state with a place where each tensor was, the tensors in the order of their places). What is of another kind,
    or not to be taken, stays where it is, and torch.save() finds its tensors."""
    tensors = []
    add = tensors.append

    def take(value):
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if takes is not None and not takes(value):
                return value
            add(value)
            return _At, len(tensors) - 1
        if kind is dict:
            return {key: take(each) for key, each in value.items()}
        if kind is collections.OrderedDict:
            taken = collections.OrderedDict((key, take(each)) for key, each in value.items())
            taken.__dict__.update(value.__dict__)  # a module's state_dict() has metadata there
            return taken
        if kind is list or kind is tuple:
            return kind(map(take, value))
        return value

    return take(state), tensors


class _Layout:
    """Where the bytes of tensors lie: each once, however often it is in the state."""

    # What tells tensors apart: two that agree in all of it are one. The last two tell apart what is no plain tensor, or has gaps;
    # an address is that of the CPU or of a GPU.
    _COLUMNS = (torch.Tensor.data_ptr, operator.attrgetter("dtype"), operator.attrgetter("shape"), type,
                operator.attrgetter("requires_grad"), torch.Tensor.is_neg, torch.Tensor.is_contiguous)
    _COLUMNS_OF_FEW = (torch.Tensor.stride, torch.Tensor.is_conj)  # only where there are gaps, or complex numbers

    def __init__(self, tensors, are_all):
        """`are_all`: of the state, as there is none that is not plain."""
        self.are_all = are_all
        is_simple = all(each.is_contiguous() and not each.is_complex() for each in tensors)
        self._columns = [(column, list(map(column, tensors)))
                         for column in (self._COLUMNS if is_simple else self._COLUMNS + self._COLUMNS_OF_FEW)]
        known, kept, numbers = {}, [], []  # numbers: of each tensor, the line of the table
        for at, about in enumerate(zip(*(values for _, values in self._columns))):
            new = len(kept)
            number = known.setdefault(about, new) if about[0] else new  # an empty one has no memory
            if number == new:
                kept.append(at)
            numbers.append(number)
        # Of each: type of its elements, shape, is it a Parameter, has it gradients.
        table = [(tensors[at].dtype, tuple(tensors[at].shape), type(tensors[at]) is torch.nn.Parameter, tensors[at].requires_grad)
                 for at in kept]
        self.sum = int.from_bytes(hashlib.blake2b(repr(table).encode(), digest_size=8).digest(), "little")
        self.text = pickle.dumps((table, numbers), pickle.HIGHEST_PROTOCOL)
        self.sizes = _sizes(table)
        self.offsets, self.size = _offsets(self.sizes)
        self._count, self._kept = len(tensors), kept
        self._is_direct = all(tensors[at].is_cpu and tensors[at].is_contiguous() for at in kept)
        self._direct = {}  # the pieces of the last share, if all tensors are copied from where they are

    def is_of(self, tensors):
        """Of these, and at the same addresses. Compared in C, without a list of what each has."""
        try:
            return len(tensors) == self._count and all(
                all(map(operator.eq, map(column, tensors), before)) for column, before in self._columns)
        except RuntimeError:  # a sparse one has no address
            return False

    def pieces(self, tensors, begin, end):
        """Arrays of address and size in turn, of the tensors' bytes from `begin` to `end`; address 0: zeroes. An array is valid
        until the next one."""
        if not self._is_direct:
            return self._find_pieces(tensors, begin, end)
        if (begin, end) not in self._direct:
            self._direct = {(begin, end): list(self._find_pieces(tensors, begin, end))}
        return self._direct[begin, end]

    def _find_pieces(self, tensors, begin, end):
        found, at, held, held_bytes = array.array("Q"), begin, [], 0
        for number, offset, size in zip(self._kept, self.offsets, self.sizes):
            first, last = max(offset, begin), min(offset + size, end)
            if first >= last:
                continue
            tensor = tensors[number]
            if not tensor.is_cpu or not tensor.is_contiguous():
                tensor = tensor.detach().cpu().contiguous()
                held.append(tensor)
                held_bytes += tensor.nbytes
            if at < first:
                found.extend((0, first - at))
            found.extend((tensor.data_ptr() + first - offset, last - first))
            at = last
            if held_bytes > _HELD_BYTES:
                yield found
                found, held, held_bytes = array.array("Q"), [], 0
        if at < end:
            found.extend((0, end - at))
        yield found


class _Parts:
    """The tensors of a state, and the rest."""

    def __init__(self, state, before):
        """`before`: the layout of this state in the last snapshot, or None."""
        are_all = before is None or before.are_all
        self._rest, self._tensors = _take_apart(state, None if are_all else _is_plain)
        self.layout = before
        if before is None or not before.is_of(self._tensors):
            if are_all and not all(map(_is_plain, self._tensors)):
                are_all = False
                self._rest, self._tensors = _take_apart(state, _is_plain)
            self.layout = _Layout(self._tensors, are_all)

    def structure(self):
        """The size of what the layout has to say, that, and the state without its tensors."""
        text = self.layout.text
        begin = len(text).to_bytes(8, "little") + text
        rest = io.BytesIO()
        try:
            _Pickler(rest, pickle.HIGHEST_PROTOCOL).dump(self._rest)
        except _HasTensors:
            rest = io.BytesIO()
            torch.save(self._rest, rest)
        return b"".join((begin, rest.getbuffer()))

    def pieces(self, begin, end):
        return self.layout.pieces(self._tensors, begin, end)


def _offsets(sizes):
    *offsets, size = itertools.accumulate(map(_rounded, sizes), initial=0)
    return offsets, size


def _sizes(table):
    return [dtype.itemsize * math.prod(shape) for dtype, shape, _, _ in table]


def _put_together(value, tensors):
    kind = type(value)
    if kind is tuple and len(value) == 2 and value[0] is _At:
        return tensors[value[1]]
    if kind is dict or kind is collections.OrderedDict:
        for key, each in value.items():
            value[key] = _put_together(each, tensors)
        return value
    if kind is list or kind is tuple:
        return kind(_put_together(each, tensors) for each in value)
    return value


def _load(file):
    # It was written by this job's own processes, into memory that nobody else has.
    return torch.load(file, map_location="cpu", weights_only=False)


def _read_structure(structure):
    """(the state without its tensors, table, numbers)"""
    end = 8 + int.from_bytes(structure[:8], "little")
    rest = structure[end:]
    # torch.save() makes an archive, which begins otherwise.
    return pickle.loads(rest) if rest[:1] == b"\x80" else _load(io.BytesIO(rest)), *pickle.loads(structure[8:end])


def _as_it_was(tensor, about):
    _, _, is_parameter, has_gradients = about
    if is_parameter:
        return torch.nn.Parameter(tensor, has_gradients)
    return tensor.requires_grad_() if has_gradients else tensor


def _whole(rest, tensors, table, numbers):
    once = list(map(_as_it_was, tensors, table))
    return _put_together(rest, [once[number] for number in numbers])


class _Read:
    """A state that was read: its structure and its tensors."""

    def __init__(self, structure, memory, begin):
        """`begin`: the address where the tensors lie."""
        self._structure = structure
        self._rest, self._table, self._numbers = _read_structure(structure)
        self._tensors = [torch.empty(shape, dtype=dtype) for dtype, shape, *_ in self._table]
        sizes = _sizes(self._table)
        copies = array.array("Q", bytes(8 * 3 * len(sizes)))
        copies[0::3] = array.array("Q", map(torch.Tensor.data_ptr, self._tensors))
        copies[1::3] = array.array("Q", map(begin.__add__, _offsets(sizes)[0]))
        copies[2::3] = array.array("Q", sizes)
        memory.read(copies)

    def state(self):
        return _whole(self._rest, self._tensors, self._table, self._numbers)

    def without_large_tensors(self):
        return self._structure, {number: each for number, each in enumerate(self._tensors) if each.nbytes <= _SMALL_BYTES}


def _of_small(structure, small):
    rest, table, numbers = _read_structure(structure)
    tensors = [small[number] if number in small else torch.zeros(about[1], dtype=about[0])
               for number, about in enumerate(table)]
    return _whole(rest, tensors, table, numbers)


# ---- the memory

_ARGUMENTS = {
    "of_this_process": (ctypes.c_void_p, []),
    "begin": (ctypes.c_int, [ctypes.c_void_p, *[ctypes.c_int] * 4, ctypes.c_int64, *[ctypes.c_uint64] * 3,
                             ctypes.POINTER(ctypes.c_uint64), ctypes.c_char_p, ctypes.c_size_t]),
    "write": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]),
    "finish": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]),
    "find": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
    "step": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int]),
    "world_size": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "writers": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "rank": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "check": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "bytes": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
    "read": (None, [ctypes.c_void_p, ctypes.c_size_t]),
    "forget_after": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]),
}


class _Memory:
    @staticmethod
    def of_process():
        """None: there is none."""
        archive = sys.modules.get("_ddprun_archive")
        if archive is None:
            return None
        try:
            content = archive.get_data(archive.folder + "/libddprun_snapshots.so")
        except OSError:
            return None  # an agent that has no such library
        file = os.memfd_create("ddprun-keeping")
        try:
            os.write(file, content)
            # A path that no other library was loaded by: dlopen() would give that one.
            library = ctypes.CDLL(f"/proc/{os.getpid()}/fd/{file}")
        finally:
            os.close(file)
        memory = _Memory(library)
        return memory if memory._handle else None

    def __init__(self, library):
        for name, (result, arguments) in _ARGUMENTS.items():
            function = getattr(library, "ddprun_snapshots_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "_" + name, function)
        self._handle = self._of_this_process()
        self.step, self.world_size, self.is_whole = (
            functools.partial(each, self._handle) for each in (self._step, self._world_size, self._check))
        self._why = ctypes.create_string_buffer(_WHY_BYTES)

    def why(self):
        return self._why.value.decode(errors="replace")

    def begin(self, place, step, data_bytes, layout, own_bytes):
        """(how, begin and end of this rank's share)"""
        share = (ctypes.c_uint64 * 2)()
        how = self._begin(self._handle, place.local_world_size, place.local_rank, place.rank, place.world_size, step, data_bytes,
                          layout, own_bytes, share, self._why, _WHY_BYTES)
        return how, tuple(share)

    def write(self, is_own, pieces):
        """`pieces`: an array of address and size in turn."""
        self._write(self._handle, is_own, pieces.buffer_info()[0], len(pieces) // 2)

    def finish(self, text):
        return self._finish(self._handle, _address(text), len(text))

    def find(self):
        """[number of a snapshot in what follows …], the newest first."""
        return range(self._find(self._handle, self._why, _WHY_BYTES))

    def ranks(self, number):
        """The ranks then, by their local ranks."""
        return [self._rank(self._handle, number, writer) for writer in range(self._writers(self._handle, number))]

    def bytes(self, number, what, writer=0):
        """A tensor over the memory; None: nothing is there."""
        size = ctypes.c_uint64()
        address = self._bytes(self._handle, number, what, writer, size)
        return _bytes_at(address, size.value) if size.value > 0 else None

    def read(self, copies):
        """`copies`: an array of where to, where from and size in turn."""
        self._read(copies.buffer_info()[0], len(copies) // 3)

    def forget_after(self, place, step):
        self._forget_after(self._handle, place.local_rank, step)


def _bytes_at(address, size):
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)


def _address(text):
    return ctypes.addressof(ctypes.c_char.from_buffer(text)) if len(text) > 0 else None


# ---- the ranks

class _Rank:
    """This rank's place in the job."""

    def __init__(self):
        self.rank, self.world_size, self.local_rank, self.local_world_size = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))


def _store():
    """Of this round; a connection of its own, where the agent serves it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
    elif dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
    else:
        raise RuntimeError("ddprun.kept() is called before init_process_group(), and the job has no store of ddprun's")
    return dist.PrefixStore("/".join(["ddprun", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), "kept"]), store)


class _Agreement:
    """Of all ranks, in one call of kept(); a process that is all of them needs no store."""

    def __init__(self, place, number):
        self._place, self._number = place, number
        self._store = _store() if place.world_size > 1 else None

    def ask_all(self, what, word):
        """What each rank says."""
        place = self._place
        if self._store is None:
            return [word]
        keys = [f"{self._number}/{what}/{rank}" for rank in range(place.world_size)]
        self._store.set(keys[place.rank], word)
        try:
            self._store.wait(keys)
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise RuntimeError(f"all ranks call ddprun.kept(), and some have not: {missing}") from error
        return [each.decode() for each in self._store.multi_get(keys)]

    def tell_successor(self, answer):
        """For the standby that prepares to take this rank's place."""
        if self._store is not None:
            file = io.BytesIO()
            torch.save(answer, file)
            self._store.set(f"{self._number}/answer/{self._place.rank}", file.getvalue())

    def answer_of_predecessor(self):
        return _load(io.BytesIO(self._store.get(f"{self._number}/answer/{self._place.rank}"))) if self._store else None


class _Keeper:
    """What a worker keeps and finds; the main thread's."""

    def __init__(self):
        self._place, self._memory = _Rank(), _Memory.of_process()
        self._calls = itertools.count()
        self._is_off = False
        self._last = None  # step
        self._laid_out = None  # for which data and own part this process has laid the memory out
        self._own, self._shared = None, None  # layouts of the last snapshot

    # ---- keep

    def keep(self, step, state, shared):
        if self._last is not None and step < self._last:
            raise ValueError(f"ddprun.keep() counts the steps of the whole training: {step} comes after {self._last}")
        if self._memory is None or self._is_off:
            return
        if self._last is None:
            # What is later in memory is of a past that is not gone on from.
            self._memory.find()
            self._memory.forget_after(self._place, step - 1)
        self._last = step
        own = None if state is None else _Parts(state, self._own)
        shared = None if shared is None else _Parts(shared, self._shared)
        self._own, self._shared = own and own.layout, shared and shared.layout
        self._write(step, own, shared)

    def _write(self, step, own, shared):
        memory = self._memory
        structure = bytearray() if own is None else _padded(own.structure())
        own_bytes = len(structure) + (own.layout.size if own else 0)
        data_bytes, layout = (shared.layout.size, shared.layout.sum) if shared else (0, 0)
        how, (begin, end) = memory.begin(self._place, step, data_bytes, layout, own_bytes)
        if how == _REFUSED:
            return self._turn_off(memory.why(), self._place.local_rank == 0)
        if how == _BEGUN_ANEW:
            before, self._laid_out = self._laid_out, (data_bytes, layout, own_bytes)
            if before is not None and before[:2] == (data_bytes, layout) and own_bytes <= before[2]:
                return self._turn_off("the ranks of this node do not share the same tensors (shared=…)", True)
        if shared:
            for pieces in shared.pieces(begin, end):
                memory.write(False, pieces)
        if own:
            memory.write(True, array.array("Q", (_address(structure), len(structure))))
            for pieces in own.pieces(0, own.layout.size):
                memory.write(True, pieces)
        text = bytearray(shared.structure()) if shared and self._place.local_rank == 0 else b""
        memory.finish(text)

    def _turn_off(self, why, says):
        self._is_off = True
        if says:
            print(f"ddprun: no snapshots in memory from here on: {why}", file=sys.stderr)

    # ---- kept

    def kept(self):
        agreement = _Agreement(self._place, next(self._calls))
        if "DDPRUN_PREPARED" in os.environ:
            answer = agreement.answer_of_predecessor()
            return answer and Kept(answer[0], *(each and _of_small(*each) for each in answer[1:]))
        steps = self._whole_steps()
        offers = [set(json.loads(each)) for each in agreement.ask_all("offer", json.dumps(list(steps)))]
        step = max(set.intersection(*offers), default=None)
        found, why = (None, "") if step is None else self._read(steps[step])
        # Nobody writes before all have read.
        whys = [each for each in agreement.ask_all("read", why) if each]
        if whys:
            self._warn(f"the snapshot of step {step} in memory is not used: {whys[0]}")
            found = step = None
        if "DDPRUN_REPLACES" in os.environ:
            agreement.tell_successor(found and (step, *(each and each.without_large_tensors() for each in found)))
        if self._memory is not None:
            self._memory.forget_after(self._place, -1 if step is None else step)
        return found and Kept(step, *(each and each.state() for each in found))

    def _whole_steps(self):
        """{step: number of the snapshot} of those that this rank could continue from. Each compares the sums of what one of then
        has written, which is forgotten where it is damaged."""
        memory, place = self._memory, self._place
        if memory is None:
            return {}
        steps, damaged = {}, set()
        numbers = memory.find()
        if memory.why():
            self._warn(f"the snapshots in memory are not used: {memory.why()}")
        for number in numbers:
            step, ranks = memory.step(number), memory.ranks(number)
            writers = range(place.local_rank, len(ranks), place.local_world_size)
            if not all([memory.is_whole(number, writer) for writer in writers]):
                print(f"ddprun: the snapshot of step {step} in memory is damaged", file=sys.stderr)
                damaged.add(step)
            elif self._is_of_this_rank(number, ranks):
                steps.setdefault(step, number)
        return {step: number for step, number in steps.items() if step not in damaged}

    def _is_of_this_rank(self, number, ranks):
        """Own parts belong to their ranks."""
        if all(self._memory.bytes(number, _OWN, writer) is None for writer in range(len(ranks))):
            return True
        place = self._place
        return (self._memory.world_size(number) == place.world_size and place.local_rank < len(ranks) and
                ranks[place.local_rank] == place.rank)

    def _warn(self, what):
        if self._place.local_rank == 0:
            print(f"ddprun: {what}", file=sys.stderr)

    def _read(self, number):
        """((state, shared), why not)"""
        try:
            return (self._read_own(number), self._read_shared(number)), ""
        except Exception as error:  # of the program's classes, which may be others now
            return None, f"{type(error).__name__}: {error}"

    def _read_own(self, number):
        memory, place = self._memory, self._place
        own = memory.bytes(number, _OWN, place.local_rank) if place.local_rank < len(memory.ranks(number)) else None
        if own is None:
            return None
        size = int.from_bytes(own[:8].numpy().tobytes(), "little")
        structure = own[_OWN_HEADER:_OWN_HEADER + size].numpy().tobytes()
        return _Read(structure, memory, own.data_ptr() + _rounded(_OWN_HEADER + size))

    def _read_shared(self, number):
        text, data = (self._memory.bytes(number, what) for what in (_TEXT, _DATA))
        return None if text is None else _Read(text.numpy().tobytes(), self._memory, 0 if data is None else data.data_ptr())


def _rounded(size):
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _padded(structure):
    """With the header, so that what follows is aligned."""
    padded = bytearray(_rounded(_OWN_HEADER + len(structure)))
    padded[:8] = len(structure).to_bytes(8, "little")
    padded[_OWN_HEADER:_OWN_HEADER + len(structure)] = structure
    return padded


@functools.cache
def _of_process():
    """None: this is no worker of ddprun's."""
    return _Keeper() if progress.link_of_process() else None


os.register_at_fork(after_in_child=_of_process.cache_clear)  # a forked child is no worker: it finds no link


def keep(step, state, shared):
    """ddprun.keep()."""
    keeper = _of_process()
    if keeper is not None and "DDPRUN_PREPARED" not in os.environ:
        keeper.keep(step, state, shared)


def kept():
    """ddprun.kept()."""
    keeper = _of_process()
    return keeper.kept() if keeper is not None else None
