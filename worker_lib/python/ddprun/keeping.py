"""ddprun.keep() and ddprun.kept(): snapshots in the agent's memory, which outlives the workers (worker_lib/README.md,
"Snapshots in memory, in Python").

    keep(…):    text = structure of what is equal on all ranks, data = its tensors     (each rank writes a share)
                own part = structure of what only this rank has, then its tensors     (buffers and per_rank)

A structure is a state, pickled, with a place where each tensor was; the bytes of the tensors are copied
once, from where they are into the memory. The layout of the memory is known in C alone (worker_lib/process/snapshot_module.h),
whose library comes with the agent.

| when                       | what is compared                              | where | if it differs                                |
|----------------------------|-----------------------------------------------|-------|----------------------------------------------|
| a process's first keep()   | all values that are equal on all ranks        | store | ValueError on all ranks, and nothing is kept |
| each keep()                | values that are no tensors, and one share of  | heads | the snapshot is not whole: it is never read, |
|                            | another rank; see snapshot_memory.h           |       | and the one before it stays; a line          |
| the keep() after that      | all values, to name the first that differs    | store | a line                                       |
| each keep() of the first   | the sums of this node's and of one other      | store | a line                                       |
| rank of a node             | node's last snapshots                         |       |                                              |
| kept()                     | the sums of all nodes                         | store | the snapshot is not used; a line             |
"""

import array
import collections
import copyreg
import ctypes
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import marshal
import math
import operator
import os
import pickle
import sys
import typing

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
_ALL_CALLS = 2**64 - 1  # at a step
_LAID_OUT_AGAIN_MAX = 2  # a rank that is one call ahead of the others may make it necessary once
_TOLD_SUMS_MAX = 4  # how many times a rank tells the sums of all its values, after a difference was found



@dataclasses.dataclass(frozen=True)
class Kept:
    """A snapshot that ddprun.kept() found. What ddprun.keep() was not given is None. All tensors are on the CPU.

    `model` and `optimizer` have the form in which modules and optimizers were given: one, a list, a tuple or a dict. In place of
    each is what its load_state_dict() takes; buffers are those of this rank. `per_rank` and `replicated` are as they were given."""

    step: int
    model: typing.Any = None
    optimizer: typing.Any = None
    per_rank: typing.Any = None
    replicated: typing.Any = None


# ---- what is equal on all ranks, and what is not

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN_VALUES = (bool, int, float, complex, str, bytes, type(None))


def _class_of(module, name):
    """A class of PyTorch's, if that module is loaded: else there is no object of it."""
    return getattr(sys.modules.get(module), name, ())


def _of_each(given, name, work):
    """The results of work(object, its name), in the form in which objects were given: one, or several in lists, tuples and dicts."""
    if type(given) in (list, tuple):
        return type(given)(_of_each(each, f"{name}[{index}]", work) for index, each in enumerate(given))
    if isinstance(given, dict):
        return {key: _of_each(each, f"{name}[{key!r}]", work) for key, each in given.items()}
    return None if given is None else work(given, name)


def _state_of_model(model, name):
    """(its state with None in place of buffers, its buffers, the metadata of state_dict())"""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"ddprun.keep(): {name} is a {type(model).__name__}, and not a torch.nn.Module: give the module itself")
    sharded = _class_of("torch.distributed.fsdp", "FullyShardedDataParallel")
    if any(isinstance(each, sharded) for each in model.modules()):
        raise TypeError(f"ddprun.keep(): {name} has a FullyShardedDataParallel, of which each rank has its own part: "
                        "put its state_dict() into per_rank")
    state = model.state_dict()
    parameters = {key for key, _ in model.named_parameters(remove_duplicate=False)}
    return ({key: each if key in parameters else None for key, each in state.items()},
            {key: each for key, each in state.items() if key not in parameters},
            {key: dict(each) for key, each in getattr(state, "_metadata", {}).items()})


def _state_of_optimizer(optimizer, name):
    if isinstance(optimizer, torch.nn.Module) or not hasattr(optimizer, "load_state_dict"):
        raise TypeError(f"ddprun.keep(): {name} is a {type(optimizer).__name__}, and not an optimizer: give the optimizer itself")
    sharded = _class_of("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer")
    if isinstance(optimizer, sharded):
        raise TypeError(f"ddprun.keep(): {name} is a ZeroRedundancyOptimizer, of which each rank has its own part: "
                        "put its optim.state_dict() into per_rank")
    return optimizer.state_dict()


def _whole_state(parameters, buffers, metadata):
    """The reverse: what load_state_dict() takes."""
    state = collections.OrderedDict(parameters)
    state.update(buffers)
    state._metadata = collections.OrderedDict(metadata)
    return state


class _Equal:
    """What is equal on all ranks, and the buffers of the models."""

    def __init__(self, model, optimizer, replicated):
        models = []  # (name, its states)

        def add(each, name):
            models.append((name, _state_of_model(each, name)))
            return len(models) - 1

        form = _of_each(model, "model", add)  # with numbers in place of the models
        self.buffers = [buffers for _, (_, buffers, _) in models]
        self.state = {"form": form, "parameters": [parameters for _, (parameters, _, _) in models],
                      "metadata": [metadata for _, (_, _, metadata) in models],
                      "optimizer": _of_each(optimizer, "optimizer", _state_of_optimizer), "replicated": replicated}
        self._named = [(name, parameters) for name, (parameters, _, _) in models]
        self._named += [(name, self.state[name]) for name in ("optimizer", "replicated")]

    def leaves(self):
        """(name, what is there) of all of it. Raises TypeError for what is not known to be equal on all ranks."""
        for name, its in self._named:
            yield from _leaves(name, its)

    def check(self, value):
        """As leaves() raises, for one value in it."""
        if isinstance(value, torch.Tensor) or hasattr(value, "load_state_dict"):
            for _ in self.leaves():
                pass


def _refuse(name, value):
    """Raises TypeError for an object that is not known to be equal on all ranks, or that is no state."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor) and type(value) not in _PLAIN_TENSORS:
        advice = ("put the state_dict() of the model into per_rank" if name.startswith("model") else
                  "put the state_dict() of the optimizer into per_rank" if name.startswith("optimizer") else "put it into per_rank")
        raise TypeError(f"ddprun.keep(): {name} is a {kind}, of which each rank may have its own part: {advice}")
    if isinstance(value, torch.nn.Module):
        raise TypeError(f"ddprun.keep(): {name} is a module ({kind}): give it as model=…")
    if isinstance(value, torch.optim.Optimizer):
        raise TypeError(f"ddprun.keep(): {name} is an optimizer ({kind}): give it as optimizer=…")
    if hasattr(value, "load_state_dict") and not isinstance(value, type):
        raise TypeError(f"ddprun.keep(): {name} is a {kind}: give its state_dict()")


def _leaves(name, value, above=()):
    """(where it is, what is there) of all that is in a state: tensors, and texts that are equal for equal values. Raises TypeError for
    what _refuse() refuses, wherever it is."""
    kind = type(value)
    _refuse(name, value)
    if isinstance(value, torch.Tensor):
        yield name, value
    elif kind is bytes:  # an array may have many: their hash is shorter than their text
        yield name, f"bytes {len(value)} {hashlib.blake2b(value).hexdigest()}"
    elif kind in _PLAIN_VALUES:
        yield name, f"{kind.__name__} {value!r}"
    elif isinstance(value, type) or hasattr(value, "__qualname__"):
        yield name, f"{value.__module__}.{value.__qualname__}"
    elif id(value) in above:
        yield name, "a part of itself"
    elif kind in (set, frozenset):
        yield name, f"{kind.__name__} {sorted(repr(list(_leaves('', each, (*above, id(value))))) for each in value)}"
    else:
        yield name, f"{kind.__module__}.{kind.__qualname__}"
        for part, each in _parts_of(name, value):
            yield from _leaves(part, each, (*above, id(value)))


def _parts_of(name, value):
    """(where it is, what is there) of what a container has, or of what another object is pickled as."""
    kind = type(value)
    if kind in (dict, collections.OrderedDict):
        yield f"{name}.keys()", repr(list(value))
        yield from ((f"{name}[{key!r}]", each) for key, each in value.items())
        return
    if kind in (list, tuple):
        yield f"len({name})", len(value)
        yield from ((f"{name}[{index}]", each) for index, each in enumerate(value))
        return
    reduce = copyreg.dispatch_table.get(kind)
    reduced = reduce(value) if reduce else value.__reduce_ex__(4)  # the last one that has no buffers beside it
    if isinstance(reduced, str):
        yield name, reduced
        return
    _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    yield from ((f"{name}.{index}", each) for index, each in enumerate(arguments))
    attributes = state if isinstance(state, dict) else {"state": state}
    yield from ((f"{name}.{key}", each) for key, each in attributes.items() if each is not None)
    yield from ((f"{name}[{index}]", each) for index, each in enumerate(items or ()))
    yield from ((f"{name}[{key!r}]", each) for key, each in pairs or ())


def _contents(tensor):
    """Its elements as a tensor whose bytes they are."""
    its = tensor.detach()
    if its.is_sparse:
        its = its.coalesce()
    its = its.to_dense() if its.layout is not torch.strided else its
    its = its.int_repr() if its.is_quantized else its
    return its.resolve_conj().resolve_neg().cpu().contiguous()


def _sums(memory, leaves):
    """{where it is: a text that is equal for equal values}"""
    def sum_of(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        its = None if leaf.is_meta else _contents(leaf)
        return f"{leaf.dtype} {tuple(leaf.shape)} {its is not None and memory.sum(its.data_ptr(), its.nbytes)}"
    return {name: sum_of(leaf) for name, leaf in leaves}


def _difference(rank, other, its, others):
    """A sentence on the first value that is not the same on these two ranks."""
    name = next(name for name in dict.fromkeys([*its, *others]) if its.get(name) != others.get(name))
    advice = ("the replicas have drifted apart, or each rank trains its own: then put the state_dict() into per_rank"
              if name.removeprefix("len(").startswith(("model", "optimizer")) else "give the module, or put it into per_rank")
    return f"{name} differs between ranks {rank} and {other}: {advice}"


# ---- a state, taken apart

# (_AT, number): where a tensor was, the number of those before it. (_PARTS_AT, class, {name: place}, context, shape, strides): where
# a tensor subclass was whose parts are tensors. Of types that pickle and marshal in C.
_AT, _PARTS_AT = "\0ddprun's tensor", "\0ddprun's tensor subclass"


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


def _take_apart(state, takes=None, other=lambda value: None):
    """(the state with a place where each tensor was, the tensors in the order of their places, whether there is nothing of another
    kind). What is of another kind, or not to be taken, stays where it is, and torch.save() finds its tensors; `other` is called with
    what is of another kind."""
    tensors = []
    add = tensors.append
    is_plain = True

    def take(value):
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if takes is not None and not takes(value):
                return value
            add(value)
            return _AT, len(tensors) - 1
        if kind is dict:
            return {key: take(each) for key, each in value.items()}
        if kind is collections.OrderedDict:
            taken = collections.OrderedDict((key, take(each)) for key, each in value.items())
            taken.__dict__.update(value.__dict__)  # a module's state_dict() has metadata there
            return taken
        if kind is list or kind is tuple:
            return kind(map(take, value))
        if kind in _PLAIN_VALUES:
            return value
        nonlocal is_plain
        is_plain = False
        other(value)
        if isinstance(value, torch.Tensor) and hasattr(kind, "__tensor_unflatten__"):  # as DTensor has it
            names, context = value.__tensor_flatten__()
            return (_PARTS_AT, kind, {name: take(getattr(value, name)) for name in names}, context, value.shape, value.stride())
        return value

    taken = take(state)
    return taken, tensors, is_plain


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
        self._direct = {}  # the pieces of shares, if all tensors are copied from where they are

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
            self._direct[begin, end] = list(self._find_pieces(tensors, begin, end))
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

    def __init__(self, state, before, other=lambda value: None):
        """`before`: the layout of this state in the last snapshot, or None; `other` as in _take_apart()."""
        are_all = before is None or before.are_all
        self._rest, self._tensors, self._is_plain = _take_apart(state, None if are_all else _is_plain, other)
        self.layout = before
        if before is None or not before.is_of(self._tensors):
            if are_all and not all(map(_is_plain, self._tensors)):
                are_all = False
                self._rest, self._tensors, self._is_plain = _take_apart(state, _is_plain)
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

    def sum_of_values(self, memory):
        """Over what is no tensor: equal for equal values, in every process."""
        try:
            # Without references: these depend on which objects are one.
            text = marshal.dumps(self._rest, 2) if self._is_plain else None
        except ValueError:  # a class of keys or of dicts that marshal does not know
            text = None
        if text is None:  # marshal writes arrays without dtype and shape, and the addresses of objects in them
            text = repr(_sums(memory, _leaves("", self._rest))).encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _offsets(sizes):
    *offsets, size = itertools.accumulate(map(_rounded, sizes), initial=0)
    return offsets, size


def _sizes(table):
    return [dtype.itemsize * math.prod(shape) for dtype, shape, _, _ in table]


def _put_together(value, tensors):
    kind = type(value)
    if kind is tuple and value and type(value[0]) is str and value[0] == _AT:
        return tensors[value[1]]
    if kind is tuple and value and type(value[0]) is str and value[0] == _PARTS_AT:
        _, subclass, parts, context, shape, strides = value
        return subclass.__tensor_unflatten__(_put_together(parts, tensors), context, shape, strides)
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
    "begin": (ctypes.c_int, [ctypes.c_void_p, *[ctypes.c_int] * 4, ctypes.c_int64, *[ctypes.c_uint64] * 4,
                             ctypes.POINTER(ctypes.c_uint64), ctypes.c_char_p, ctypes.c_size_t]),
    "write": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]),
    "compare": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]),
    "add": (None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]),
    "finish": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]),
    "difference": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), *[ctypes.POINTER(ctypes.c_int)] * 2]),
    "is_difference_told": (ctypes.c_int, [ctypes.c_void_p]),
    "sum": (ctypes.c_uint32, [ctypes.c_void_p, ctypes.c_uint64]),
    "values": (ctypes.c_uint32, [ctypes.c_void_p, ctypes.c_int]),
    "find": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
    "step": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int]),
    "call": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_int]),
    "world_size": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "writers": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "rank": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "check": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "bytes": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
    "read": (None, [ctypes.c_void_p, ctypes.c_size_t]),
    "forget_after": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64]),
}


def _is_memory_offered():
    """The same on all ranks of a node, whatever becomes of the memory in this process."""
    return "_ddprun_archive" in sys.modules


class _Memory:
    @staticmethod
    def of_process():
        """None: there is none; a line says so if it was offered."""
        if not _is_memory_offered():
            return None
        archive = sys.modules["_ddprun_archive"]
        try:
            content = archive.get_data(archive.folder + "/libddprun_snapshots.so")
            file = os.memfd_create("ddprun-keeping")
            try:
                os.write(file, content)
                # A path that no other library was loaded by: dlopen() would give that one.
                memory = _Memory(ctypes.CDLL(f"/proc/{os.getpid()}/fd/{file}"))
            finally:
                os.close(file)
        except (OSError, AttributeError) as error:  # libstdc++ lacks a symbol; an agent of another version lacks a function
            print(f"ddprun: no snapshots in memory: the agent's library cannot be used: {error}", file=sys.stderr)
            return None
        if not memory._handle:
            print("ddprun: no snapshots in memory: this process does not have the descriptor of their memory any more",
                  file=sys.stderr)
            return None
        return memory

    def __init__(self, library):
        for name, (result, arguments) in _ARGUMENTS.items():
            function = getattr(library, "ddprun_snapshots_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "_" + name, function)
        self._handle = self._of_this_process()
        self.world_size, self.is_whole, self.is_difference_told = (
            functools.partial(each, self._handle) for each in (self._world_size, self._check, self._is_difference_told))
        self.sum = self._sum
        self._why = ctypes.create_string_buffer(_WHY_BYTES)

    def why(self):
        return self._why.value.decode(errors="replace")

    def begin(self, place, when, data_bytes, layout, own_bytes):
        """(how, begin and end of this rank's share); `when`: (step, how often this process has called keep() before at it)"""
        share = (ctypes.c_uint64 * 2)()
        how = self._begin(self._handle, place.local_world_size, place.local_rank, place.rank, place.world_size, *when, data_bytes,
                          layout, own_bytes, share, self._why, _WHY_BYTES)
        return how, tuple(share)

    def write(self, is_own, pieces):
        """`pieces`: an array of address and size in turn."""
        self._write(self._handle, is_own, pieces.buffer_info()[0], len(pieces) // 2)

    def compare(self, values):
        """Begin and end of the share of another rank that this rank sums, too; None: there is no other rank on this node."""
        share = (ctypes.c_uint64 * 2)()
        return tuple(share) if self._compare(self._handle, values, share) >= 0 else None

    def add(self, pieces):
        self._add(self._handle, pieces.buffer_info()[0], len(pieces) // 2)

    def difference(self):
        """(step, rank, other rank) if two ranks differ, and this process tells of it."""
        step, rank, other = ctypes.c_int64(), ctypes.c_int(), ctypes.c_int()
        return (step.value, rank.value, other.value) if self._difference(self._handle, step, rank, other) else None

    def values(self, number):
        """What nodes with as many ranks have the same of: (how many, sum)"""
        return len(self.ranks(number)), self._values(self._handle, number)

    def finish(self, text):
        return self._finish(self._handle, _address(text), len(text), self._why, _WHY_BYTES)

    def find(self):
        """[number of a snapshot in what follows …], the newest first."""
        return range(self._find(self._handle, self._why, _WHY_BYTES))

    def when(self, number):
        return self._step(self._handle, number), self._call(self._handle, number)

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

    def forget_after(self, place, step, call=_ALL_CALLS):
        self._forget_after(self._handle, place.local_rank, step, call)


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


def _store(function, number):
    """For one call of a function, in this round; a connection of its own, where the agent serves it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
    elif dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
    else:
        raise RuntimeError(f"ddprun.{function}() is called before init_process_group(), and the job has no store of ddprun's")
    return dist.PrefixStore(f"ddprun/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{function}/{number}", store)


class _Agreement:
    """What all ranks say in one call of keep() or kept(); a process that is the only rank needs no store."""

    def __init__(self, place, function, number):
        self._place, self._function = place, function
        self._store = _store(function, number) if place.world_size > 1 else None

    def ask_all(self, what, word):
        """What each rank says."""
        place = self._place
        if self._store is None:
            return [word]
        keys = [f"{what}/{rank}" for rank in range(place.world_size)]
        self._store.set(keys[place.rank], word)
        try:
            self._store.wait(keys, dist.constants.default_pg_timeout)
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise RuntimeError(f"all ranks call ddprun.{self._function}(), and some have not: {missing}") from error
        return [each.decode() for each in self._store.multi_get(keys)]

    def of_two(self, ranks, what, word):
        """What these two ranks say: pickled objects."""
        if self._place.rank in ranks:
            self._store.set(f"{what}/{self._place.rank}", pickle.dumps(word))
        return [pickle.loads(self._store.get(f"{what}/{rank}")) for rank in ranks]

    def tell_successor(self, answer):
        """For the standby that prepares to take this rank's place."""
        if self._store is not None:
            file = io.BytesIO()
            torch.save(answer, file)
            self._store.set(f"answer/{self._place.rank}", file.getvalue())

    def answer_of_predecessor(self):
        return _load(io.BytesIO(self._store.get(f"answer/{self._place.rank}"))) if self._store else None


class _Nodes:
    """The sums of the nodes' last snapshots, in the store: the first rank of each node looks at those of one other node in each
    snapshot, and waits for none."""

    _LAST = 4  # nodes are not always at the same step

    def __init__(self, place):
        self._place = place
        self._node, self._count = (int(os.environ[name]) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"))
        self._store = _store("keep", "nodes")
        self._calls = itertools.count()
        self._own = {}  # step and call: (rank, (ranks of the node, sum))

    def difference(self, when, values):
        """(step, rank, other rank) at which this node and the other one differ; None: there is none, or it is not known."""
        step, call = when
        self._own[f"{step}.{call}"] = self._place.rank, values
        self._own = dict(list(self._own.items())[-self._LAST:])
        other = (self._node + 1 + next(self._calls) % (self._count - 1)) % self._count
        self._store.set(str(self._node), json.dumps(self._own))
        theirs = json.loads(self._store.get(str(other))) if self._store.check([str(other)]) else {}
        for key, (rank, (ranks, its)) in self._own.items():
            other_rank, (other_ranks, others) = theirs.get(key, (rank, (ranks, its)))
            if ranks == other_ranks and its != others:
                return int(key.partition(".")[0]), min(rank, other_rank), max(rank, other_rank)
        return None


class _Keeper:
    """What a process keeps and finds; the main thread's. A process that is no worker of ddprun's has no memory, and only refuses what
    is wrong anywhere."""

    def __init__(self):
        is_worker = bool(progress.link_of_process())
        self._place = _Rank() if is_worker else None
        self._memory = _Memory.of_process() if is_worker else None
        self._calls = itertools.count()  # calls of kept(), which a standby counts, too; it has no part in keep()
        self._comparisons = itertools.count()
        self._is_off = False
        self._is_compared = False
        self._last = None  # (step, how often keep() was called before at this step)
        self._wanted = None  # bytes and layout of the data, bytes of the own part, in the last keep()
        self._laid_out_again = 0  # how often the memory had another layout, though the last keep() wanted the same data
        self._own, self._shared = None, None  # layouts of the last snapshot
        place = self._place
        self._found = None  # (step, rank, other rank): two ranks of this node that differ, as this process has told
        self._told_sums = []  # steps and calls
        self._is_first_of_several = place is not None and place.local_rank == 0 and place.local_world_size < place.world_size
        self._nodes = None

    # ---- keep

    def keep(self, step, model, optimizer, per_rank, replicated):
        self._begin(step)
        equal = _Equal(model, optimizer, replicated)
        if not self._is_compared:
            self._compare(equal)
        if self._memory is None or self._is_off:
            _take_apart(equal.state, other=equal.check)
            return
        has_own = per_rank is not None or any(equal.buffers)
        own = _Parts({"buffers": equal.buffers, "per_rank": per_rank}, self._own) if has_own else None
        shared = _Parts(equal.state, self._shared, equal.check)
        self._write(own, shared, shared.sum_of_values(self._memory))
        if self._memory.is_difference_told() and len(self._told_sums) < _TOLD_SUMS_MAX:
            self._name_difference(equal)

    def keep_state(self, step, state, shared):
        """What recoverable() keeps: it compares by itself what is no tensor."""
        self._begin(step)
        if self._memory is not None and not self._is_off:
            self._write(_Parts(state, self._own), _Parts(shared, self._shared), 0)

    def _begin(self, step):
        try:
            step = operator.index(step)
        except TypeError:
            raise TypeError(f"ddprun.keep(): step is {step!r}, and not a whole number") from None
        if step < 0:
            raise ValueError(f"ddprun.keep(): step is {step}: the steps of the whole training are counted from 0 or 1")
        last, call = self._last or (-1, 0)
        if step < last:
            raise ValueError(f"ddprun.keep() counts the steps of the whole training: {step} comes after {last}")
        if self._last is None and self._memory is not None:
            # What is later in memory is of a past that is not gone on from.
            self._memory.find()
            self._memory.forget_after(self._place, step - 1)
        self._last = step, call + 1 if step == last else 0

    def _can_keep_nothing(self):
        """No rank has memory: all know, and none asks the others. On another node of the job there may be some."""
        place = self._place
        return place is None or not _is_memory_offered() and place.local_world_size == place.world_size

    def _compare(self, equal):
        """Raises ValueError on all ranks if two of them differ. Where recoverable() replaces ranks in place, no rank waits for others
        here: the group that a dead rank's successor needs is made by their main threads."""
        leaves = list(equal.leaves())
        if self._can_keep_nothing() or "ddprun.recovery" in sys.modules:
            self._is_compared = True
            return
        agreement = _Agreement(self._place, "keep", next(self._comparisons))
        sums = None if self._memory is None else _sums(self._memory, leaves)
        words = agreement.ask_all("sum", f"{self._last[0]} {sums and hashlib.blake2b(repr(sums).encode()).hexdigest()}")
        steps, of_ranks = zip(*(word.split() for word in words))
        for rank, its in enumerate(steps):
            if its != steps[0]:
                raise ValueError(f"ddprun.keep() is called for step {steps[0]} on rank 0, and for step {its} on rank {rank}")
        for rank, its in enumerate(of_ranks):
            if "None" not in (its, of_ranks[0]) and its != of_ranks[0]:
                raise ValueError(f"ddprun.keep(): {_difference(0, rank, *agreement.of_two((0, rank), 'values', sums))}")
        self._is_compared = True
        if "None" in of_ranks and self._memory is not None:
            self._turn_off(f"rank {of_ranks.index('None')} has no memory for them", self._place.local_rank == 0)

    def _write(self, own, shared, values):
        memory = self._memory
        self._own, self._shared = own and own.layout, shared.layout
        structure = bytearray() if own is None else _padded(own.structure())
        own_bytes = len(structure) + (own.layout.size if own else 0)
        data_bytes, layout = shared.layout.size, shared.layout.sum
        self._tell_difference()
        how, (begin, end) = memory.begin(self._place, self._last, data_bytes, layout, own_bytes)
        if how == _REFUSED:
            return self._turn_off(memory.why(), self._place.local_rank == 0)
        if self._is_laid_out_otherwise(how, data_bytes, layout, own_bytes):
            return self._turn_off("the ranks of this node do not have the same tensors in what is equal on all ranks", True)
        for pieces in shared.pieces(begin, end):
            memory.write(False, pieces)
        compared = memory.compare(values)
        for pieces in shared.pieces(*compared) if compared else ():
            memory.add(pieces)
        if own:
            memory.write(True, array.array("Q", (_address(structure), len(structure))))
            for pieces in own.pieces(0, own.layout.size):
                memory.write(True, pieces)
        if memory.finish(bytearray(shared.structure()) if self._place.local_rank == 0 else b"") == _REFUSED:
            return self._turn_off(memory.why(), True)
        self._tell_difference()  # the last rank that ends sees it; a rank that begins the next one writes over it
        if self._is_first_of_several:
            self._compare_nodes()

    def _is_laid_out_otherwise(self, how, data_bytes, layout, own_bytes):
        """Whether other ranks lay the memory out for other data again and again, while this rank's stay the same."""
        before, self._wanted = self._wanted, (data_bytes, layout, own_bytes)
        if before is None or before[:2] != (data_bytes, layout):
            self._laid_out_again = 0
        elif how == _BEGUN_ANEW and own_bytes <= before[2]:
            self._laid_out_again += 1
        return self._laid_out_again >= _LAID_OUT_AGAIN_MAX

    def _compare_nodes(self):
        memory = self._memory
        try:
            self._nodes = self._nodes or _Nodes(self._place)
            newest = [(memory.when(number), memory.values(number)) for number in memory.find()[:1]]
            difference = self._nodes.difference(*newest[0]) if newest else None
        except RuntimeError:  # the store is gone, and soon so is the job; or it has none that this process can reach
            difference, self._is_first_of_several = None, False
        if difference:
            self._is_first_of_several = False  # once
            self._tell(*difference)

    def _tell_difference(self):
        difference = self._memory.difference()
        if difference:
            self._found = difference
            self._tell(*difference)

    def _name_difference(self, equal):
        """The ranks of this node tell the sums of their values, and the one that has found the difference looks for a name in those
        of a step that both ranks have told. None waits."""
        step, call = self._last
        try:
            store = _store("keep", "difference")
            store.set(f"{step}.{call}/{self._place.rank}", pickle.dumps(_sums(self._memory, equal.leaves())))
            self._told_sums.append(self._last)
            _, *ranks = self._found or (None,)
            for at, call in self._told_sums if ranks else ():
                keys = [f"{at}.{call}/{rank}" for rank in ranks]
                if store.check(keys):
                    its, others = (pickle.loads(store.get(key)) for key in keys)
                    self._found = None
                    if its != others:
                        what = _difference(*ranks, its, others)
                        print(f"ddprun: {what}", file=sys.stderr)
                        progress.link_of_process().tell_difference(at, *ranks, what)
                    return
        except RuntimeError:  # the store is gone, and soon so is the job
            pass

    def _tell(self, step, rank, other):
        what = (f"the snapshot of step {step} in memory is not used: what is equal on all ranks (parameters, optimizers, "
                f"replicated) differs between ranks {rank} and {other}")
        print(f"ddprun: {what}", file=sys.stderr)
        progress.link_of_process().tell_difference(step, rank, other, what)

    def _turn_off(self, why, says):
        self._is_off = True
        if says:
            print(f"ddprun: no snapshots in memory from here on: {why}", file=sys.stderr)

    # ---- kept

    def kept(self):
        """(step, what this rank has, what is equal on all ranks); None: there is none."""
        if self._can_keep_nothing():
            return None
        agreement = _Agreement(self._place, "kept", next(self._calls))
        if "DDPRUN_PREPARED" in os.environ:
            answer = agreement.answer_of_predecessor()
            return answer and (answer[0], *(each and _of_small(*each) for each in answer[1:]))
        numbers = self._whole_snapshots()
        offers = agreement.ask_all("offer", json.dumps([(when, self._memory.values(number)) for when, number in numbers.items()]))
        when = self._newest([{tuple(when): its for when, its in json.loads(each)} for each in offers])
        found, states, why = (None, None, "") if when is None else self._read(numbers[when])
        # No rank writes before all have read.
        whys = [each for each in agreement.ask_all("read", why) if each]
        if whys:
            self._warn(f"the snapshot of step {when[0]} in memory is not used: {whys[0]}")
            found = when = None
        if "DDPRUN_REPLACES" in os.environ:
            agreement.tell_successor(found and (when[0], *(each and each.without_large_tensors() for each in found)))
        if self._memory is not None:
            self._memory.forget_after(self._place, *(when or (-1,)))
        return found and (when[0], *states)

    def _newest(self, offers):
        """(step, call) of the newest snapshot that all ranks have, and of which all nodes have the same."""
        for step, call in sorted(set.intersection(*map(set, offers)), reverse=True):
            sums = {}  # by the number of ranks of a node
            differing = [(rank, other) for rank, offer in enumerate(offers) for ranks, its in [offer[step, call]]
                         for other, first in [sums.setdefault(ranks, (rank, its))] if its != first]
            if not differing:
                return step, call
            (rank, other), *_ = differing
            self._warn(f"the snapshot of step {step} in memory is not used: what is equal on all ranks differs between ranks "
                       f"{other} and {rank}")
        return None

    def _whole_snapshots(self):
        """{(step, call): number of the snapshot} of those that this rank could continue from. Each compares the sums of what one of
        then has written, which is forgotten where it is damaged."""
        memory, place = self._memory, self._place
        if memory is None:
            return {}
        whole = {}
        numbers = memory.find()
        self._tell_difference()
        if memory.why():
            self._warn(f"the snapshots in memory are not used: {memory.why()}")
        for number in numbers:
            when, ranks = memory.when(number), memory.ranks(number)
            writers = range(place.local_rank, len(ranks), place.local_world_size)
            if not all([memory.is_whole(number, writer) for writer in writers]):
                print(f"ddprun: the snapshot of step {when[0]} in memory is damaged", file=sys.stderr)
            elif self._is_of_this_rank(number, ranks):
                whole[when] = number
        return whole

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
        """(what was read of this rank's own part and of the shared one, their states, why not)"""
        try:
            found = self._read_own(number), self._read_shared(number)
            return found, [each and each.state() for each in found], ""
        except Exception as error:  # of the program's classes, which may be others now
            return None, None, f"{type(error).__name__}: {error}"

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
    return _Keeper()


os.register_at_fork(after_in_child=_of_process.cache_clear)  # a forked child is no worker: it finds no link


def keep(step, model, optimizer, per_rank, replicated):
    """ddprun.keep()."""
    if "DDPRUN_PREPARED" not in os.environ:
        _of_process().keep(step, model, optimizer, per_rank, replicated)


def kept():
    """ddprun.kept()."""
    found = _of_process().kept()
    if found is None:
        return None
    step, own, shared = found
    if "form" not in shared:
        return None  # recoverable() has kept it
    buffers, per_rank = (own["buffers"], own["per_rank"]) if own else ([{}] * len(shared["parameters"]), None)
    models = list(map(_whole_state, shared["parameters"], buffers, shared["metadata"]))
    model = _of_each(shared["form"], "model", lambda number, _: models[number])
    return Kept(step, model, shared["optimizer"], per_rank, shared["replicated"])


def keep_state(step, state, shared):
    """What recoverable() keeps."""
    _of_process().keep_state(step, state, shared)


def kept_state():
    """(step, state, shared) as keep_state() has kept it; None: there is none."""
    found = _of_process().kept()
    return found if found and isinstance(found[2], dict) and found[2].get("of") == "recoverable" else None
