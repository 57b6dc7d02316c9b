"""The state of a training that only one rank has, and the part of it that all ranks have the same of. Used by
ddprun.replace, which keeps the former in the rank's mirror and gives the latter to a rank that lacks it."""

import ctypes
import importlib
import marshal
import pickle
import random
import struct
import sys
import zlib

import torch
import torch.distributed as dist

from ddprun import agreement, in_place

_MERSENNE_BYTES = 2500
# PyTorch's generator in memory: seed, left, seeded, next, 624 words of 32 bits, two numbers of a normal distribution that are
# left over.
_TORCH_BEFORE_WORDS, _TORCH_AFTER_WORDS = 20, 28
_TORCH_BYTES = _TORCH_BEFORE_WORDS + 624 * 4 + _TORCH_AFTER_WORDS
_NUMPY_GAUSS_BYTES = 16  # whether a number of a normal distribution is left over, and that number
_POSITION = struct.Struct("=qqq")  # epoch, loop and steps, with which StepPath (ddprun.in_place) begins a record's text
# A tensor in memory (c10::TensorImpl): counters of references, then what is seen of it: its storage, sizes, strides, offset.
_TENSOR_SEARCHED_BYTES, _TENSOR_SEEN_BYTES = 32, 144
_STORAGE_SEARCHED_BYTES = 32  # c10::StorageImpl: counters, then where its bytes are
_PIECE_BYTES = 25 << 20  # of what a broadcast copies


class Generators:
    """The random numbers of PyTorch on the CPU and on `gpu` (None: on none), of Python and of NumPy. Those of a CPU are copied
    as they lie in memory, which takes a fraction of a microsecond. Who is not found there is asked, which takes up to a
    hundred.

    A state is a pair: what was asked for, beginning with a letter for each that was found, and what was copied of these."""

    _SIZES = {"t": _TORCH_BYTES, "p": _MERSENNE_BYTES, "n": _MERSENNE_BYTES + _NUMPY_GAUSS_BYTES}
    BYTES_MAX = sum(_SIZES.values())

    def __init__(self, gpu):
        self._of_gpu = torch.cuda.default_generators[gpu.index] if gpu is not None else None
        self._torch = torch.default_generator
        self._numpy = self._numpys = None  # its generator, when it is there, and where that has its words
        self._found, self._asked = {}, None
        self._find("t", _memory_of_torch(self._torch))
        self._find("p", _memory_of_python())

    def _find(self, letter, pieces):
        if pieces:
            self._found[letter] = pieces
        else:
            self._found.pop(letter, None)
        self.pieces = [each for its in self._found.values() for each in its]  # pairs of address and size
        self.size = sum(size for _, size in self.pieces)
        letters = "".join(self._found)
        expected = {"t", "p"} | ({"n"} if self._numpy is not None else set())
        is_all = self._of_gpu is None and expected == set(letters)
        self._usual = (letters, None, None, None, None, b"") if is_all else None
        self._seen = None

    def asked(self):
        """The first half of their state now; the second is what lies in `pieces` then."""
        if self._numpy is None and "numpy.random" in sys.modules:  # it is loaded when it is used first
            self._numpy = getattr(getattr(sys.modules["numpy.random"], "mtrand", None), "_rand", None)
        if self._numpy is not None and self._numpy._bit_generator is not self._numpys:
            self._numpys = self._numpy._bit_generator  # which keeps its memory
            self._find("n", _memory_of_numpy(self._numpy))
        left_over = _PYTHON.gauss_next
        self._asked = self._usual if left_over is None and self._usual is not None else self._ask(left_over)
        return self._asked

    def _ask(self, left_over):
        found = self._found
        return ("".join(found), left_over, None if "t" in found else self._torch.get_state().numpy().tobytes(),
                None if "p" in found else random.getstate(),
                None if "n" in found or self._numpy is None else pickle.dumps(self._numpy.get_state(legacy=False)),
                self._of_gpu.get_state().numpy().tobytes() if self._of_gpu is not None else b"")  # sixteen, of the CPU

    def seen(self):
        """What holds as long as asked() returns the same as it did last; none: it asks one of them each time."""
        if self._usual is None or self._asked is not self._usual:
            return None
        if self._seen is None:
            types = in_place.types
            if self._numpy is None:
                of_numpy = [(types.ABSENT, sys.modules, "numpy.random", None)]
            else:
                of_numpy = _word_of(self._numpy, id(self._numpy), type(self._numpy).__basicsize__, id(self._numpys)) or [
                    (types.ATTRIBUTE, self._numpy, "_bit_generator", self._numpys)]
            self._seen = types.Seen([(types.ITEM, vars(_PYTHON), "gauss_next", None), *of_numpy])
        return self._seen

    @property
    def usual(self):
        """What asked() returns when all that is in `pieces` is all of their state."""
        return self._usual

    def now(self):
        """Their state."""
        return self.asked(), b"".join(ctypes.string_at(*each) for each in self.pieces)

    def size_of(self, asked):
        """Of what was copied beside it."""
        return sum(self._SIZES[letter] for letter in asked[0])

    def restore(self, state):
        (letters, left_over, of_torch, of_python, of_numpy, of_gpu), copied = state
        at = 0
        for letter in letters:
            if letter == "n":
                importlib.import_module("numpy.random")
                self.asked()
            for address, size in self._found[letter]:
                ctypes.memmove(address, copied[at:at + size], size)
                at += size
        if of_torch is not None:
            self._torch.set_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
        _PYTHON.gauss_next = left_over
        if of_python is not None:
            random.setstate(of_python)
        if of_numpy is not None:
            importlib.import_module("numpy.random").set_state(pickle.loads(of_numpy))
        if of_gpu:
            self._of_gpu.set_state(torch.frombuffer(bytearray(of_gpu), dtype=torch.uint8))


_PYTHON = random._inst


# Of each generator pairs of address and size; none: it is not where it is expected.

def _memory_of_torch(generator):
    address = getattr(generator, "_cdata", None)
    try:  # get_state() has the same, with words of 64 bits
        words = struct.pack("=624I", *struct.unpack_from("=624Q", generator.get_state().numpy().tobytes(), 24))
    except struct.error:
        return []
    found = ctypes.string_at(address, 2688).find(words) if address else -1
    return [(address + found - _TORCH_BEFORE_WORDS, _TORCH_BYTES)] if found >= _TORCH_BEFORE_WORDS else []


def _memory_of_python():
    version, words, _ = random.getstate()
    address = id(_PYTHON) + object.__basicsize__
    try:
        position, *numbers = struct.unpack("=i624I", ctypes.string_at(address, _MERSENNE_BYTES))
    except (TypeError, ValueError, struct.error):
        return []
    return [(address, _MERSENNE_BYTES)] if version == 3 and (*numbers, position) == words else []


def _memory_of_numpy(generator):
    words = generator._bit_generator
    if type(words).__name__ != "MT19937":
        return []
    try:
        at, state = words.ctypes.state_address, generator.get_state(legacy=False)
        expected = struct.pack("=624Ii", *state["state"]["key"].tolist(), state["state"]["pos"])
    except (AttributeError, KeyError, struct.error):
        return []
    if ctypes.string_at(at, _MERSENNE_BYTES) != expected:
        return []
    # What is left over lies in the generator itself, behind a pointer to another part of it.
    begin, size = id(generator), type(generator).__basicsize__
    memory = ctypes.string_at(begin, size)
    for offset in range(0, size - 23, 8):
        pointer, *left_over = struct.unpack_from("=Qi4xd", memory, offset)
        if begin < pointer < begin + size and left_over == [state["has_gauss"], state["gauss"]]:
            return [(at, _MERSENNE_BYTES), (begin + offset + 8, _NUMPY_GAUSS_BYTES)]
    return []


def _word_of(owner, address, size, word):
    """A condition of in_place.types.Seen: that this word is where it is found in this memory, which `owner` keeps; empty: it
    is not there."""
    expected = struct.pack("=Q", word)
    at = ctypes.string_at(address, size).find(expected)
    return [(in_place.types.MEMORY, owner, address + at, expected)] if at >= 0 and at % 8 == 0 else []


def _where_it_is(tensor):
    """Likewise, that the tensor has the memory that it has now; empty: its parts are not where they are expected."""
    storage = tensor.untyped_storage()
    of_object = _word_of(tensor, id(tensor), type(tensor).__basicsize__, tensor._cdata)
    of_tensor = _word_of(tensor, tensor._cdata, _TENSOR_SEARCHED_BYTES, storage._cdata)
    of_storage = _word_of(storage, storage._cdata, _STORAGE_SEARCHED_BYTES, storage.data_ptr())
    if not (of_object and of_tensor and of_storage):
        return []
    [(kind, owner, address, _)] = of_tensor
    return [*of_object, (kind, owner, address, ctypes.string_at(address, _TENSOR_SEEN_BYTES)), *of_storage]


class Versions:
    """The numbers that in-place changes of tensors make larger (tensor._version), as they lie in memory: a step of a model
    that has a thousand parameters would take as long for asking them as for all the rest.

    `blocks` has all of them, for StepPath; none: they are not where they are expected, and are asked."""

    def __init__(self, tensors):
        self.blocks = None
        if not tensors:
            return
        self._shared = [each.detach() for each in tensors]  # has the same counter, which lives as long as one of them
        offset, at = self._offset_of_pointer(), self._offset_in_counter()
        if offset is None or at is None:
            return
        blocks = []
        for each in tensors:
            [counter] = struct.unpack("=Q", ctypes.string_at(each._cdata + offset, 8))
            blocks.append((counter + at, 4))
        self.blocks = in_place.types.Blocks(blocks)

    @staticmethod
    def _offset_of_pointer():
        """Of a tensor's pointer to its counter: what it shares with what is detached of it, beside its storage."""
        tensor, other = torch.zeros(1), torch.zeros(1)
        shared, storage = tensor.detach(), struct.pack("=Q", tensor.untyped_storage()._cdata)
        words = [[ctypes.string_at(each._cdata + at, 8) for at in range(8, _TENSOR_SEEN_BYTES, 8)]
                 for each in (tensor, shared, other)]
        found = [number for number, (its, same, others) in enumerate(zip(*words)) if its == same != others and its != storage]
        return 8 + 8 * found[0] if len(found) == 1 else None

    @classmethod
    def _offset_in_counter(cls):
        tensor, offset, found = torch.zeros(1), cls._offset_of_pointer(), []
        if offset is None:
            return None
        for _ in range(3):
            [counter] = struct.unpack("=Q", ctypes.string_at(tensor._cdata + offset, 8))
            numbers = struct.unpack("=6I", ctypes.string_at(counter, 24))  # all of a counter: no memory behind it
            found.append({at for at, number in enumerate(numbers) if number == tensor._version})
            tensor.zero_()
        found = set.intersection(*found)
        return 4 * found.pop() if len(found) == 1 else None


class Buffers:
    """The buffers of a module. Those of rank 0 are everybody's before a forward, if DDP is told so; those that the other
    ranks make of them are their own."""

    def __init__(self, module):
        self._places = [(each._buffers, name) for each in module.modules() for name, buffer in each._buffers.items()
                        if buffer is not None]
        self._of_modules = [each._buffers for each in module.modules() if each._buffers]
        self._sizes = [buffers[name].nbytes for buffers, name in self._places]
        self.size = sum(self._sizes)
        devices = {buffers[name].device for buffers, name in self._places}
        self._is_on_gpu = any(each.type != "cpu" for each in devices)
        self._is_on_one = len(devices) <= 1
        self._addresses = None
        self.seen = None  # what holds as long as they are where the last blocks() has found them; none: they are asked
        self.trouble = None  # why the last blocks() has found none

    def why_not(self):
        for (buffers, name), size in zip(self._places, self._sizes):
            if buffers.get(name) is None or buffers[name].nbytes != size:
                return f"the buffer {name} of its model has another size than at join(), or is gone"
            if not buffers[name].is_contiguous():
                return f"the buffer {name} of its model is not in one piece"
        return None if self._is_on_one else "the buffers of its model are on several devices"

    def _tensors(self):
        return [each for buffers, name in self._places if (each := buffers.get(name)) is not None]

    def have_moved(self):
        """Since the last blocks()."""
        if self.seen is not None:
            return not self.seen.is_so()
        return self._is_on_gpu or [each.data_ptr() for each in self._tensors()] != self._addresses

    def blocks(self):
        """Pairs of address and size, valid until the next call; none: `trouble` says why. From a GPU they come with one copy,
        and so one wait."""
        self.seen, self._addresses = None, None
        self.trouble = self.why_not()
        if self.trouble is not None:
            return []
        if self._is_on_gpu:
            with torch.no_grad():
                self._held = torch.cat([each.view(-1).view(torch.uint8) for each in self._tensors()]).cpu()
            return [(self._held.data_ptr(), self.size)]
        tensors, types = self._tensors(), in_place.types
        self._addresses = [each.data_ptr() for each in tensors]
        conditions = [_where_it_is(each) for each in tensors]
        if all(conditions):
            of_modules = [(types.VALUES, buffers, None, tuple(buffers.values())) for buffers in self._of_modules]
            self.seen = types.Seen([*of_modules, *(each for its in conditions for each in its)])
        return list(zip(self._addresses, self._sizes))

    def restore(self, data):
        if self.size > 0:
            _put(torch.frombuffer(bytearray(data), dtype=torch.uint8), self._tensors())


class OwnState:
    """What only this rank has, for a record of its mirror: random numbers, buffers, the parts that join() was given, and a few
    more values of the caller's."""

    def __init__(self, module, gpu, parts):
        self.generators, self.buffers, self._parts = Generators(gpu), Buffers(module), parts
        self._before = ctypes.create_string_buffer(Generators.BYTES_MAX)
        self.noted_at = ctypes.addressof(self._before)
        self._at_given = ctypes.create_string_buffer(Generators.BYTES_MAX)
        self.given_at = ctypes.addressof(self._at_given)
        self._asked_before = self._asked = self._pieces = None
        self._before_bytes = 0

    def _lay_out(self, before_bytes):
        self._before_bytes, self._pieces = before_bytes, self.generators.pieces
        of_effect = [*self._pieces, *self.buffers.blocks()]
        self.entry_blocks = in_place.types.Blocks([(self.noted_at, before_bytes), *of_effect])
        self.effect_blocks = in_place.types.Blocks(of_effect)
        self.generator_blocks = in_place.types.Blocks(self._pieces)

    @property
    def size(self):
        """Of a record's blocks."""
        return Generators.BYTES_MAX * 2 + self.buffers.size

    def note_generators(self):
        """As they are before the batches of a step are loaded."""
        generators = self.generators
        self._asked_before = generators.asked()
        if generators.pieces is not self._pieces or generators.size != self._before_bytes:
            self._lay_out(generators.size)
        self.generator_blocks.copy_to(self.noted_at)

    def noted_given(self):
        """The generators as StepPath has copied them to given_at, while all was as usual."""
        return self.generators.usual, ctypes.string_at(self.given_at, self.generators.size)

    def entry_text(self, more):
        """Of a record with entry_blocks, with what note_generators() has noted."""
        return self._text(more, self._asked_before)

    def effect_text(self, more):
        """Of one with effect_blocks: without it."""
        return self._text(more, None)

    def _text(self, more, before):
        self._asked = self.generators.asked()
        if self.generators.pieces is not self._pieces or self.buffers.have_moved():
            self._lay_out(self._before_bytes)
        # marshal takes a fifth of what pickle takes, but makes bytes of whatever has some, such as an array.
        return marshal.dumps((more, before, self._asked, self.pickled_parts()))

    def generators_seen(self):
        """What holds as long as the generators are written, and noted, by copying memory alone; none: they are not."""
        return self.generators.seen() if self.generators.size == self._before_bytes else None

    def is_text_the_same(self, with_noted):
        """Whether the next text is the last one if all that was seen holds."""
        return not self._parts and (not with_noted or self._asked_before == self._asked)

    def pickled_parts(self):
        return pickle.dumps({name: part.state_dict() for name, part in self._parts.items()}) if self._parts else None

    def is_as_in(self, record):
        """In one that effect() was written into."""
        text, copied = record
        _, _, asked, parts = marshal.loads(text[_POSITION.size:])
        now, of_generators = self.generators.now()
        if now[0] != asked[0]:
            return True  # NumPy was loaded meanwhile
        of_buffers = b"".join(ctypes.string_at(*each) for each in self.buffers.blocks())
        return (asked, parts, copied) == (now, self.pickled_parts(), of_generators + of_buffers)

    def read(self, record):
        """(the position, what the caller had noted, the generators as note_generators() has noted them, a function that puts
        those of the record and the rest back)."""
        text, copied = record
        position = _POSITION.unpack_from(text)
        more, asked_before, asked, parts = marshal.loads(text[_POSITION.size:])
        at = self.generators.size_of(asked_before) if asked_before is not None else 0
        before = (asked_before, copied[:at]) if asked_before is not None else None
        end = at + self.generators.size_of(asked)
        generators, buffers = (asked, copied[at:end]), copied[end:]

        def restore():
            for name, state in pickle.loads(parts).items() if parts is not None else ():
                self._parts[name].load_state_dict(state)
            self.buffers.restore(buffers)
            self.generators.restore(generators)
        return position, more, before, restore


class SharedState:
    """What all ranks have the same of: parameters, the optimizer's state, and that of schedulers and a GradScaler."""

    def __init__(self, parameters, optimizer, schedulers, scaler):
        self._parameters, self._optimizer, self._schedulers, self._scaler = parameters, optimizer, schedulers, scaler
        self._values, self._settings = None, b""
        self._changes_unseen = scaler is not None

    def settings(self):
        """All but the tensors: what a scheduler may change between two steps, too. As bytes."""
        values = [tuple(group.values()) for group in self._optimizer.param_groups]
        if self._schedulers:
            values += [getattr(each, "last_epoch", None) for each in self._schedulers]
        if values != self._values or self._changes_unseen:
            groups = [{name: value for name, value in group.items() if name != "params"}
                      for group in self._optimizer.param_groups]
            # A tensor may be written into: a learning rate that is one.
            self._changes_unseen = self._scaler is not None or any(
                isinstance(value, torch.Tensor) for group in groups for value in group.values()) or not all(
                hasattr(each, "last_epoch") for each in self._schedulers)
            self._settings = pickle.dumps((groups, [each.state_dict() for each in self._schedulers],
                                           self._scaler.state_dict() if self._scaler is not None else None))
        self._values = values
        return self._settings

    def seen(self):
        """What holds as long as the last settings() are those of now; none: they are asked for each time."""
        if self._changes_unseen or self._values is None:
            return None
        types, optimizer, values = in_place.types, self._optimizer, self._values
        of_groups = [(types.VALUES, group, None, its) for group, its in zip(optimizer.param_groups, values)]
        of_schedulers = [(types.ATTRIBUTE, each, "last_epoch", its)
                         for each, its in zip(self._schedulers, values[len(of_groups):])]
        groups = optimizer.param_groups
        return types.Seen([(types.ATTRIBUTE, optimizer, "param_groups", groups), (types.VALUES, groups, None, tuple(groups)),
                           *of_groups, *of_schedulers])

    def has_groups_of(self, settings):
        return len(pickle.loads(settings)[0]) == len(self._optimizer.param_groups)

    def set(self, settings):
        self._values = None
        groups, schedulers, scaler = pickle.loads(settings)
        for group, its in zip(self._optimizer.param_groups, groups):
            group.update(its)
        for scheduler, its in zip(self._schedulers, schedulers):
            scheduler.load_state_dict(its)
        if self._scaler is not None:
            self._scaler.load_state_dict(scaler)
            self.forget_unscaled()

    def forget_unscaled(self):
        """Of a step that was not made to its end."""
        states = getattr(self._scaler, "_per_optimizer_states", None)
        if states is not None:
            states.clear()

    def has_sparse(self):
        return any(isinstance(value, torch.Tensor) and value.layout != torch.strided
                   for its in self._optimizer.state.values() for value in its.values())

    def pieces(self, bytes_of_piece, pieces_max):
        """How many times sums() is asked, until all tensors are summed; equal on all ranks, whatever their state is."""
        size = sum(each.nbytes for each in self._parameters) * 3  # as with Adam's moments
        return max(1, min(pieces_max, -(-size // bytes_of_piece)))

    def sums(self, piece, pieces):
        """{name: sum} of this part of the tensors, with all settings."""
        found = {}  # settings first: a difference in them is the cause of others
        for index, group in enumerate(self._optimizer.param_groups):
            for name, value in group.items():
                if name != "params":
                    found.update(agreement.leaves(f"{name} of the optimizer's parameter group {index}", value))
        for index, each in enumerate(self._schedulers):
            found.update(agreement.leaves(f"state of scheduler {index}", each.state_dict()))
        if self._scaler is not None:
            found.update(agreement.leaves("state of the GradScaler", self._scaler.state_dict()))
        tensors = {f"parameter {index}": each for index, each in enumerate(self._parameters)}
        for index, its in self._optimizer.state_dict()["state"].items():
            tensors.update((f"the optimizer's {name} of parameter {index}", value) for name, value in its.items())
        for name, value in tensors.items():
            if zlib.crc32(name.encode()) % pieces == piece:
                found.update(agreement.leaves(name, value))
        return found

    def shape(self):
        """The optimizer's state without the contents of its tensors."""
        return {index: {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in its.items()}
                for index, its in self._optimizer.state_dict()["state"].items()}

    def take_shape(self, shape):
        """For contents that are to come."""
        state = {index: {name: torch.empty_like(value, device="cpu") if isinstance(value, torch.Tensor) else value
                         for name, value in its.items()}
                 for index, its in shape.items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._optimizer._opt_called = True  # or a scheduler warns that it has not stepped yet

    def give(self, group, source, to):
        """Rank `source` sends its own to the ranks `to`, who call this, too."""
        rank = group.rank()
        if rank != source and rank not in to:
            return
        tensors = [each.detach() for each in self._parameters]
        for _, its in sorted(self._optimizer.state_dict()["state"].items()):
            tensors += [its[name] for name in sorted(its) if isinstance(its[name], torch.Tensor)]
        under_way = []

        def finish():
            piece, data, works = under_way.pop(0)
            for work in works:
                work.wait()
            if rank != source:
                _put(data, piece)

        for number, piece in enumerate(_pieces_of(tensors)):
            if rank == source:
                data = torch.cat([each.contiguous().view(-1).view(torch.uint8) for each in piece]).cpu()
                works = [group.send([data], each, number) for each in to]
            else:
                data = torch.empty(sum(each.nbytes for each in piece), dtype=torch.uint8)
                works = [group.recv([data], source, number)]
            under_way.append((piece, data, works))
            if len(under_way) > 1:  # one is sent while the next is copied
                finish()
        if under_way:
            finish()


def _pieces_of(tensors):
    """Lists of tensors on one device, each of so many bytes or of one tensor: a piece crosses to a GPU with one copy."""
    piece, size = [], 0
    for tensor in sorted(tensors, key=lambda each: each.device.type):  # Adam counts its steps on the CPU
        if piece and (size + tensor.nbytes > _PIECE_BYTES or tensor.device != piece[0].device):
            yield piece
            piece, size = [], 0
        piece.append(tensor)
        size += tensor.nbytes
    if piece:
        yield piece


def _put(data, tensors):
    """These bytes into tensors on one device, one after the other."""
    parts = data.to(tensors[0].device).split([each.nbytes for each in tensors])
    with torch.no_grad():
        for each, part in zip(tensors, parts):
            is_aligned = part.storage_offset() % each.element_size() == 0
            each.copy_((part if is_aligned else part.clone()).view(each.dtype).view(each.shape))


# ---- DDP's reducer

def layout_of(ddp):
    """The buckets that it has arranged, as indices of parameters; None: it has not, or does not."""
    text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")
    return [[int(index) for index in bucket.split()] for bucket in text.split(",")] if text else None


def make_reducer_again(ddp, group, layout, have_gradients):
    """With this group and these buckets. Nothing of the one before is used any more: a call of the old group may still write
    into its buckets. Every rank does so, hence all arrange their buckets anew in the forward after the next one."""
    make = dist._compute_bucket_assignment_by_size

    def as_before(parameters, limits, *rest):
        _, limit = make(parameters, limits, *rest)
        return list(reversed(layout)), [max(limit) if isinstance(limit, list) else limit] * len(layout)

    ddp.process_group = group
    # A parameter without a gradient is one that the optimizer leaves alone.
    for parameter, has_gradient in zip(ddp.parameters(), have_gradients):
        parameter.grad = torch.zeros_like(parameter) if has_gradient else None
    parameters, are_sparse = ddp._build_params_for_reducer()
    dist._compute_bucket_assignment_by_size = as_before if layout else make
    try:
        ddp._ddp_init_helper(parameters, are_sparse, ddp._build_debug_param_to_name_mapping(parameters), ddp.static_graph)
    finally:
        dist._compute_bucket_assignment_by_size = make
    ddp._has_rebuilt_buckets = False
