"""The state of a training that only one rank has, and the part of it that all ranks have the same of. Used by
ddprun.replace, which keeps the former in the rank's mirror and gives the latter to a rank that lacks it."""

import ctypes
import marshal
import pickle
import random
import struct
import sys

import torch
import torch.distributed as dist

_LENGTHS = struct.Struct("=QQ")  # of the generators of Python and NumPy, of the rest
_MERSENNE_BYTES = 2500
_PIECE_BYTES = 25 << 20  # of what a broadcast copies


def to_bytes(value):
    try:
        return b"m" + marshal.dumps(value)  # a fifth of what pickle takes
    except ValueError:
        return b"p" + pickle.dumps(value)


def from_bytes(data):
    return (marshal if data[:1] == b"m" else pickle).loads(data[1:])


class Generators:
    """The random numbers of PyTorch on the CPU, of Python and of NumPy."""

    def __init__(self):
        self._torch = torch.default_generator
        self.torch_bytes = self._torch.get_state().numel()
        # A look at the memory of the generators tells in a fraction of a microsecond whether somebody has drawn from
        # them; to ask them takes a hundred.
        self._python = _python_memory()
        self._numpy, self._numpy_memory = _numpy_memory()
        self._seen = None

    def others(self):
        """Those of Python and NumPy, as bytes that read() understands."""
        python, numpy = self._python, self._numpy_memory
        seen = (bytes(python) if python is not None else random.getstate(), random._inst.gauss_next,
                bytes(numpy) if numpy is not None else None)
        if seen != self._seen or self._has_gauss:
            of_numpy = self._numpy.get_state(legacy=False) if self._numpy is not None else None
            self._has_gauss = of_numpy is not None and bool(of_numpy.get("has_gauss"))
            self._others = pickle.dumps((random.getstate(), of_numpy))
            self._seen = seen
        return self._others

    def now(self):
        """(PyTorch's, the others), as bytes."""
        state = self._torch.get_state()
        return ctypes.string_at(state.data_ptr(), self.torch_bytes), self.others()

    def restore(self, state):
        of_torch, others = state
        self._torch.set_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
        if self._seen is not None and others == self._others and self.others() == others:
            return
        of_python, of_numpy = pickle.loads(others)
        random.setstate(of_python)
        if of_numpy is not None:
            sys.modules["numpy.random"].set_state(of_numpy)

    _has_gauss = False
    _others = b""


def _python_memory():
    """A view of the words of Python's generator; None: they are not where they are expected."""
    version, words, _ = random.getstate()
    try:
        memory = (ctypes.c_char * _MERSENNE_BYTES).from_address(id(random._inst) + object.__basicsize__)
        position, *numbers = struct.unpack("=i624I", bytes(memory))
    except (TypeError, ValueError, struct.error):
        return None
    return memory if version == 3 and (*numbers, position) == words else None


def _numpy_memory():
    """NumPy's module of random numbers, and a view of its generator's words; None where there is none."""
    module = sys.modules.get("numpy.random")
    if module is None:
        return None, None
    try:
        generator = module.mtrand._rand._bit_generator
        if type(generator).__name__ != "MT19937":
            return module, None
        return module, (ctypes.c_char * _MERSENNE_BYTES).from_address(generator.ctypes.state_address)
    except AttributeError:
        return module, None


class Buffers:
    """The buffers of a module. Those of rank 0 are everybody's before a forward, if DDP is told so; those that the other
    ranks make of them are their own."""

    def __init__(self, module):
        self._places = [(each._buffers, name) for each in module.modules() for name, buffer in each._buffers.items()
                        if buffer is not None]
        self._sizes = [buffers[name].nbytes for buffers, name in self._places]
        self.size = sum(self._sizes)

    def why_not(self):
        for buffers, name in self._places:
            buffer = buffers[name]
            if buffer.device.type != "cpu" or not buffer.is_contiguous():
                return f"the buffer {name} of its model is not in the memory of the CPU, in one piece"
        return None

    def blocks(self):
        return [(buffers[name].data_ptr(), size) for (buffers, name), size in zip(self._places, self._sizes)]

    def restore(self, data):
        at = 0
        for address, size in self.blocks():
            ctypes.memmove(address, data[at:at + size], size)
            at += size


class OwnState:
    """What only this rank has, as one record: random numbers, buffers, the parts that join() was given, and a few more
    bytes of the caller's."""

    def __init__(self, module, parts):
        self.generators, self.buffers, self._parts = Generators(), Buffers(module), parts

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
        by_type = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for kind in sorted(by_type, key=str):
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
