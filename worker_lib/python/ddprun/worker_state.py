"""The state of a training that only one rank has, and the part of it that all ranks have the same of. Used by
ddprun.replace, which keeps the former in the rank's mirror and gives the latter to a rank that lacks it."""

import ctypes
import importlib
import marshal
import pickle
import random
import struct
import sys

import torch
import torch.distributed as dist

_LENGTHS = struct.Struct("=QQ")  # of the generators of Python and NumPy, of the rest
_MERSENNE_BYTES = 2500
# PyTorch's generator in memory: seed, left, seeded, next, 624 words of 32 bits, two numbers of a normal distribution that are
# left over.
_TORCH_BEFORE_WORDS, _TORCH_AFTER_WORDS = 20, 28
_TORCH_BYTES = _TORCH_BEFORE_WORDS + 624 * 4 + _TORCH_AFTER_WORDS
_PIECE_BYTES = 25 << 20  # of what a broadcast copies


def to_bytes(value):
    try:
        return b"m" + marshal.dumps(value)  # a fifth of what pickle takes
    except ValueError:
        return b"p" + pickle.dumps(value)


def from_bytes(data):
    return (marshal if data[:1] == b"m" else pickle).loads(data[1:])


class Generators:
    """The random numbers of PyTorch on the CPU and on `gpu` (None: on none), of Python and of NumPy. All but the GPU's make
    their words in blocks of 624, so the place in the block and some of its words tell whether somebody has drawn from a
    generator. A look at them takes a fraction of a microsecond; to ask a generator takes up to a hundred."""

    def __init__(self, gpu):
        self._of_gpu = torch.cuda.default_generators[gpu.index] if gpu is not None else None
        self._torch = torch.default_generator
        self._torch_at = _place_of_torch(self._torch)  # None: it is not where it is expected
        self.torch_bytes = self._torch.get_state().numel() if self._torch_at is None else _TORCH_BYTES
        self._looks_at_torch = []
        if self._torch_at is not None:  # the place in the block, and what follows the words
            after_words = self._torch_at + _TORCH_BYTES - _TORCH_AFTER_WORDS
            self._looks_at_torch = [_look(self._torch_at), _look(after_words, _TORCH_AFTER_WORDS)]
        self._looks_at_python = _python_memory()
        self._numpy, self._looks_at_numpy = None, []
        self._seen_of_torch = self._seen_of_others = None
        self._must_ask = not self._looks_at_python
        self._has_gauss = False  # NumPy has a number left over, whose use does not show
        self._now = b"", b""

    def _find_numpy(self):
        self._numpy, self._looks_at_numpy = _numpy_memory()
        self._must_ask = self._must_ask or not self._looks_at_numpy

    def _of_torch(self):
        if self._torch_at is not None:
            # get_state() takes four times as long, and gives twice as many bytes.
            return ctypes.string_at(self._torch_at, _TORCH_BYTES)
        state = self._torch.get_state()
        return ctypes.string_at(state.data_ptr(), self.torch_bytes)

    def _of_others(self):
        of_numpy = self._numpy.get_state(legacy=False) if self._numpy is not None else None
        self._has_gauss = of_numpy is not None and bool(of_numpy.get("has_gauss"))
        return pickle.dumps((random.getstate(), of_numpy, self._state_of_gpu()))

    def _state_of_gpu(self):
        return self._of_gpu.get_state().numpy().tobytes() if self._of_gpu is not None else b""  # sixteen, of the CPU

    def now(self):
        """(PyTorch's, the others), as bytes; the same object as long as nobody draws."""
        if self._numpy is None and "numpy.random" in sys.modules:  # it is loaded when it is used first
            self._find_numpy()
        of_torch = [bytes(each) for each in self._looks_at_torch]
        of_others = [bytes(each) for each in self._looks_at_python]
        of_others.append(random._inst.gauss_next)
        of_others += [bytes(each) for each in self._looks_at_numpy]
        of_others.append(self._state_of_gpu())
        before = self._now
        if not of_torch or of_torch != self._seen_of_torch:
            self._now = self._of_torch(), self._now[1]
            self._seen_of_torch = of_torch
        if of_others != self._seen_of_others or self._has_gauss or self._must_ask:
            self._now = self._now[0], self._of_others()
            self._seen_of_others = of_others
        if self._now is not before and self._now == before:
            self._now = before
        return self._now

    def restore(self, state):
        of_torch, others = state
        if self._torch_at is not None:
            ctypes.memmove(self._torch_at, of_torch, _TORCH_BYTES)
        else:
            self._torch.set_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
        if self.now()[1] == others:
            return
        of_python, of_numpy, of_gpu = pickle.loads(others)
        random.setstate(of_python)
        if of_gpu:
            self._of_gpu.set_state(torch.frombuffer(bytearray(of_gpu), dtype=torch.uint8))
        if of_numpy is not None:
            importlib.import_module("numpy.random").set_state(of_numpy)


_LOOK_BYTES = 64


def _look(address, size=_LOOK_BYTES):
    return (ctypes.c_char * size).from_address(address)


def _place_of_torch(generator):
    """The address of the generator's _TORCH_BYTES. None: they are not where they are expected."""
    address = getattr(generator, "_cdata", None)
    try:  # get_state() has the same, with words of 64 bits
        words = struct.pack("=624I", *struct.unpack_from("=624Q", generator.get_state().numpy().tobytes(), 24))
    except struct.error:
        return None
    found = ctypes.string_at(address, 2688).find(words) if address else -1
    return address + found - _TORCH_BEFORE_WORDS if found >= _TORCH_BEFORE_WORDS else None


def _python_memory():
    version, words, _ = random.getstate()
    address = id(random._inst) + object.__basicsize__
    try:
        position, *numbers = struct.unpack("=i624I", ctypes.string_at(address, _MERSENNE_BYTES))
    except (TypeError, ValueError, struct.error):
        return []
    return [_look(address)] if version == 3 and (*numbers, position) == words else []


def _numpy_memory():
    """NumPy's module of random numbers and a view: its generator has the place at the end."""
    module = sys.modules["numpy.random"]
    try:
        generator = module.mtrand._rand._bit_generator
        if type(generator).__name__ != "MT19937":
            return module, []
        return module, [_look(generator.ctypes.state_address + _MERSENNE_BYTES - _LOOK_BYTES)]
    except AttributeError:
        return module, []


class Buffers:
    """The buffers of a module. Those of rank 0 are everybody's before a forward, if DDP is told so; those that the other
    ranks make of them are their own."""

    def __init__(self, module):
        self._places = [(each._buffers, name) for each in module.modules() for name, buffer in each._buffers.items()
                        if buffer is not None]
        self._sizes = [buffers[name].nbytes for buffers, name in self._places]
        self.size = sum(self._sizes)
        devices = {buffers[name].device for buffers, name in self._places}
        self._is_on_gpu = any(each.type != "cpu" for each in devices)
        self._is_on_one = len(devices) <= 1

    def why_not(self):
        for buffers, name in self._places:
            if not buffers[name].is_contiguous():
                return f"the buffer {name} of its model is not in one piece"
        return None if self._is_on_one else "the buffers of its model are on several devices"

    def _tensors(self):
        return [buffers[name] for buffers, name in self._places]

    def blocks(self):
        """Pairs of address and size, valid until the next call. From a GPU they come with one copy, and so one wait."""
        if self._is_on_gpu:
            with torch.no_grad():
                self._held = torch.cat([each.view(-1).view(torch.uint8) for each in self._tensors()]).cpu()
            return [(self._held.data_ptr(), self.size)]
        return [(each.data_ptr(), size) for each, size in zip(self._tensors(), self._sizes)]

    def restore(self, data):
        at, whole = 0, torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.size > 0 else None
        with torch.no_grad():
            for each, size in zip(self._tensors(), self._sizes):
                each.view(-1).view(torch.uint8).copy_(whole[at:at + size])
                at += size


class OwnState:
    """What only this rank has, as one record: random numbers, buffers, the parts that join() was given, and a few more
    bytes of the caller's."""

    def __init__(self, module, gpu, parts):
        self.generators, self.buffers, self._parts = Generators(gpu), Buffers(module), parts

    def record(self, generators, more):
        """(parts, blocks, size) for Mirror.write()."""
        of_torch, others = generators
        if self._parts:
            more = more, {name: part.state_dict() for name, part in self._parts.items()}
        rest = to_bytes(more)
        size = _LENGTHS.size + len(others) + len(rest) + len(of_torch) + self.buffers.size
        return (_LENGTHS.pack(len(others), len(rest)), others, rest, of_torch), self.buffers.blocks(), size

    def read(self, record):
        """(what the caller had noted, the generators, a function that puts these and the rest back)."""
        of_others, of_rest = _LENGTHS.unpack_from(record)
        at = _LENGTHS.size
        others = record[at:at + of_others]
        at += of_others
        more = from_bytes(record[at:at + of_rest])
        at += of_rest
        of_torch = record[at:at + self.generators.torch_bytes]
        buffers = record[at + self.generators.torch_bytes:]
        parts = {}
        if self._parts:
            more, parts = more

        def restore():
            for name, state in parts.items():
                self._parts[name].load_state_dict(state)
            self.buffers.restore(buffers)
            self.generators.restore((of_torch, others))
        return more, (of_torch, others), restore


class SharedState:
    """What all ranks have the same of: parameters, the optimizer's state, and that of schedulers and a GradScaler."""

    def __init__(self, parameters, optimizer, schedulers, scaler):
        self._parameters, self._optimizer, self._schedulers, self._scaler = parameters, optimizer, schedulers, scaler
        self._seen, self._settings = None, b""

    def settings(self):
        """All but the tensors: what a scheduler may change between two steps, too. As bytes."""
        seen = [value for group in self._optimizer.param_groups for value in list(group.values())[1:]]
        seen += [each.last_epoch for each in self._schedulers]
        if self._scaler is not None or seen != self._seen:
            groups = [{name: value for name, value in group.items() if name != "params"}
                      for group in self._optimizer.param_groups]
            self._seen = seen
            self._settings = to_bytes((groups, [each.state_dict() for each in self._schedulers],
                                       self._scaler.state_dict() if self._scaler is not None else None))
        return self._settings

    def set(self, settings):
        self._seen = None
        groups, schedulers, scaler = from_bytes(settings)
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

    def shape(self):
        """The optimizer's state without the contents of its tensors."""
        return {index: {name: _Shape(value) if isinstance(value, torch.Tensor) else value for name, value in its.items()}
                for index, its in self._optimizer.state_dict()["state"].items()}

    def take_shape(self, shape):
        """For contents that are to come."""
        state = {index: {name: value.empty() if isinstance(value, _Shape) else value for name, value in its.items()}
                 for index, its in shape.items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._optimizer._opt_called = True  # or a scheduler warns that it has not stepped yet

    def share(self, group, source):
        """Collective: all have what rank `source` has."""
        tensors = [each.detach() for each in self._parameters]
        for _, its in sorted(self._optimizer.state_dict()["state"].items()):
            tensors += [its[name] for name in sorted(its) if isinstance(its[name], torch.Tensor)]
        by_type = {}  # and by device: Adam counts its steps on the CPU
        for tensor in tensors:
            by_type.setdefault((str(tensor.dtype), tensor.device.type), []).append(tensor)
        for kind in sorted(by_type):
            dist._broadcast_coalesced(group, by_type[kind], _PIECE_BYTES, source)


class _Shape:
    def __init__(self, tensor):
        self.size, self.stride, self.dtype = tuple(tensor.size()), tensor.stride(), tensor.dtype

    def empty(self):
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype)


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
