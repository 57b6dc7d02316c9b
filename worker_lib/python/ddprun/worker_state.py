"""The state of a training that only one rank has, and the part of it that is equal on all ranks. Used by ddprun.recovery, which
keeps the former in the rank's mirror and gives the latter to a rank that lacks it."""

import collections
import copy
import importlib
import io
import marshal
import pickle
import random
import sys
import zlib

import torch
import torch.distributed as dist

from ddprun import agreement

_PIECE_BYTES = 25 << 20  # of what a broadcast copies
# A part with at most so many bytes of tensors is noted whole in each step.
_SMALL_PART_BYTES = 64 << 10


class Generators:
    """The random numbers of PyTorch on the CPU and on `gpu` (None: on none), of Python and of NumPy, by their public calls. A
    state can be compared, and written by marshal."""

    def __init__(self, gpu):
        self._gpu = gpu
        self._python, self._python_bytes = None, b""

    def now(self):
        numpy = sys.modules.get("numpy.random")  # is loaded when it is used first
        python = random.getstate()
        if python != self._python:  # most programs do not draw from it in each step
            self._python, self._python_bytes = python, marshal.dumps(python)
        return (torch.get_rng_state().numpy().tobytes(), self._python_bytes,
                _state_of_numpy(numpy) if hasattr(numpy, "get_state") else None,
                torch.cuda.get_rng_state(self._gpu).numpy().tobytes() if self._gpu is not None else None)

    @staticmethod
    def are_equal(one, other):
        """If NumPy was loaded between them, its numbers are not compared."""
        return all(its == others for number, (its, others) in enumerate(zip(one, other))
                   if number != 2 or None not in (its, others))

    def restore(self, state):
        of_torch, of_python, of_numpy, of_gpu = state
        torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
        random.setstate(marshal.loads(of_python))
        if of_numpy is not None:
            _set_state_of_numpy(importlib.import_module("numpy.random"), of_numpy)
        if of_gpu is not None and self._gpu is not None:
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(of_gpu), dtype=torch.uint8), self._gpu)

    def pickled(self):
        return pickle.dumps(self.now())

    @staticmethod
    def unpickled(data):
        return pickle.loads(data)


def _state_of_numpy(numpy):
    state = numpy.get_state(legacy=False)
    key = state["state"].get("key")
    if key is None:  # another generator than NumPy's usual one
        return (pickle.dumps(state),)
    return state["bit_generator"], key.tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]


def _set_state_of_numpy(numpy, state):
    if len(state) == 1:
        [its] = state
        its = pickle.loads(its)
        if numpy.get_state(legacy=False)["bit_generator"] != its["bit_generator"]:
            numpy.set_bit_generator(getattr(numpy, its["bit_generator"])())
        return numpy.set_state(its)
    name, key, position, has_gauss, gauss = state
    if numpy.get_state(legacy=False)["bit_generator"] != name:
        numpy.set_bit_generator(getattr(numpy, name)())
    numpy.set_state((name, importlib.import_module("numpy").frombuffer(key, "uint32"), position, has_gauss, gauss))


class Buffers:
    """The buffers of modules. Those of rank 0 are everybody's before a forward, if DDP is told so; those that the other ranks
    make of them are their own."""

    def __init__(self, modules):
        self._places = [(each, name) for module in modules for each in module.modules()
                        for name, buffer in each.named_buffers(recurse=False) if buffer is not None]
        buffers = self._tensors()
        self._forms = [(each.dtype, each.shape, each.device) for each in buffers]
        self._offsets, self.size = [], 0
        for each in buffers:
            self._offsets.append(self.size)
            self.size += (each.nbytes + 15) // 16 * 16
        self._are_on_gpu = any(each.device.type != "cpu" for each in buffers)
        self._flat = torch.empty(self.size, dtype=torch.uint8)
        self._in_flat = self._in(self._flat)

    def _tensors(self):
        return [getattr(module, name, None) for module, name in self._places]

    def why_not(self):
        for (_, name), form, buffer in zip(self._places, self._forms, self._tensors()):
            if buffer is None or (buffer.dtype, buffer.shape, buffer.device) != form:
                return f"the buffer {name} of its model is of another size, type or device than at recoverable(), or is gone"
        return None

    def versions(self):
        """Changes when one of them is written into, or is another tensor."""
        return [(id(each), each._version) for each in self._tensors() if each is not None]

    def set_up(self):
        """What they are, for a comparison with those of another process."""
        return repr([(name, str(dtype), tuple(shape)) for (_, name), (dtype, shape, _) in zip(self._places, self._forms)]).encode()

    def flat(self):
        """Their contents in one tensor of bytes, until the next call; why_not() was None."""
        if self.size == 0:
            return self._flat
        with torch.no_grad():
            buffers = self._tensors()
            if self._are_on_gpu:  # with one copy, and so one wait
                flat = torch.cat([each.reshape(-1).view(torch.uint8) for each in buffers]).cpu()
                parts = flat.split([each.nbytes for each in buffers])
                buffers = [_typed(part, *form[:2]) for part, form in zip(parts, self._forms)]
            torch._foreach_copy_(self._in_flat, buffers)
        return self._flat

    def _in(self, flat):
        return [flat[at:at + shape.numel() * dtype.itemsize].view(dtype).view(shape)
                for (dtype, shape, _), at in zip(self._forms, self._offsets)]

    def difference_from(self, data):
        """The name of a buffer that is not as in flat(); None: all are."""
        if self.size > 0:
            for (_, name), buffer, its in zip(self._places, self._tensors(), self._in(_flat_of(data))):
                if its.numel() > 0 and not torch.equal(buffer.cpu().reshape(-1).view(torch.uint8), its.reshape(-1).view(torch.uint8)):
                    return name
        return None

    def restore(self, data):
        if self.size > 0:
            with torch.no_grad():
                for buffer, its in zip(self._tensors(), self._in(_flat_of(data))):
                    buffer.copy_(its)


def _flat_of(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _typed(data, dtype, shape):
    return (data if data.storage_offset() % dtype.itemsize == 0 else data.clone()).view(dtype).view(shape)


class OwnState:
    """What only this rank has, for a record of its mirror: random numbers, buffers, and the parts `per_rank`."""

    def __init__(self, modules, gpu, parts):
        self.generators, self.buffers, self._parts = Generators(gpu), Buffers(modules), parts

    def text(self, more, before, generators):
        """What is written of it now beside the buffers; `more` and the generators, `before` as they were when a batch was loaded,
        are the caller's."""
        return marshal.dumps((more, before, generators, self.pickled_parts()))

    def pickled_parts(self):
        return pickle.dumps({name: part.state_dict() for name, part in self._parts.items()}) if self._parts else None

    def restore_parts(self, pickled):
        for name, state in pickle.loads(pickled).items() if pickled is not None else ():
            self._parts[name].load_state_dict(state)

    def difference_from(self, record):
        """What is not as in the record, but for random numbers: a buffer or a part; None: nothing is."""
        text, data = record
        *_, parts = marshal.loads(text)
        buffer = self.buffers.difference_from(data)
        if buffer is not None:
            return f"the buffer {buffer}"
        before = pickle.loads(parts) if parts is not None else {}
        for name, part in self._parts.items():
            if list(agreement.leaves("", before[name])) != list(agreement.leaves("", part.state_dict())):
                return f"the part {name}"
        return None

    def read(self, record):
        """(what the caller had noted, the generators before a batch was loaded, a function that puts the rest back)."""
        text, data = record
        more, before, generators, parts = marshal.loads(text)

        def restore(with_generators=True):
            self.restore_parts(parts)
            self.buffers.restore(data)
            if with_generators:
                self.generators.restore(generators)
        return more, before, restore


def states_of(models, optimizers, parts, per_rank):
    """(OwnState, SharedState) of a training; `optimizers` are PyTorch's own."""
    modules = [getattr(each, "module", each) for each in models]
    parameters = {id(each): each for module in modules for each in module.parameters()}
    gpu = next((each.device for each in parameters.values() if each.device.type == "cuda"), None)
    for optimizer in optimizers:
        parameters.update((id(each), each) for group in optimizer.param_groups for each in group["params"])
    shared = ShardedState if any(map(is_sharded, parameters.values())) else SharedState
    return OwnState(modules, gpu, per_rank), shared(tuple(parameters.values()), optimizers, parts)


def is_sharded(tensor):
    """A rank has a part of it alone: FSDP2's DTensor."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


# ---- tensors of a state apart from the rest of it

class _Apart(pickle.Pickler):
    def __init__(self, file):
        super().__init__(file)
        self.tensors = []

    def persistent_id(self, value):
        if not isinstance(value, torch.Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Together(pickle.Unpickler):
    def __init__(self, file, tensors):
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number):
        return self._tensors[number]


def take_apart(state):
    """(the rest of it, pickled; its tensors)"""
    file = io.BytesIO()
    pickler = _Apart(file)
    pickler.dump(state)
    return file.getvalue(), pickler.tensors


def put_together(rest, tensors):
    return _Together(io.BytesIO(rest), tensors).load()


class SharedState:
    """What is equal on all ranks: parameters, the optimizers' state, and the parts (schedulers, a GradScaler, averages …). The
    tensors of a part that has many are given like parameters; the rest of a part, and all of a small part, are `settings`."""

    def __init__(self, parameters, optimizers, parts):
        self._parameters, self._optimizers = parameters, optimizers
        self._scalers = [each for each in parts.values() if isinstance(each, torch.amp.GradScaler)]
        self._parts, self._large = parts, {}  # by name; and how many bytes the tensors of a large one have
        for name, part in parts.items():
            size = sum(each.nbytes for each in take_apart(part.state_dict())[1])
            if size > _SMALL_PART_BYTES:
                self._large[name] = size
        self._given = {}  # tensors of large parts, as another rank has given them
        self._compared = collections.deque(maxlen=4)  # tensors of large parts in the last calls of version_of_weights()

    def settings(self):
        """All but the large tensors: what the program may change in a step or between two steps. As bytes."""
        groups = [[{name: value for name, value in group.items() if name != "params"} for group in each.param_groups]
                  for each in self._optimizers]
        states = {name: part.state_dict() for name, part in self._parts.items() if name not in self._large}
        rests = {name: take_apart(self._parts[name].state_dict())[0] for name in self._large}
        return pickle.dumps((groups, states, rests))

    def has_groups_of(self, settings):
        return [len(each) for each in pickle.loads(settings)[0]] == [len(each.param_groups) for each in self._optimizers]

    def set(self, settings):
        groups, states, rests = pickle.loads(settings)
        for optimizer, its in zip(self._optimizers, groups):
            for group, options in zip(optimizer.param_groups, its):
                group.update(options)
        for name, state in states.items():
            self._parts[name].load_state_dict(state)
        for name, rest in rests.items():
            tensors = self._given.get(name) or take_apart(self._parts[name].state_dict())[1]
            self._parts[name].load_state_dict(put_together(rest, [each.clone() for each in tensors]))
        self.forget_unscaled()

    def forget_given(self):
        self._given.clear()

    def forget_unscaled(self):
        """What a GradScaler knows of a step that was not made to its end."""
        for scaler in self._scalers:
            states = getattr(scaler, "_per_optimizer_states", None)
            if states is not None:
                states.clear()

    def tensors(self):
        """All of them, in an order that is equal on all ranks whose state has the same form."""
        return [*self._of_models(), *(each for name in self._large for each in self._large_tensors(name))]

    def copied(self):
        """The contents of tensors(), and what the optimizers' state has beside tensors (counters, lists), for put_back()."""
        return [each.clone() for each in self.tensors()], copy.deepcopy(self._beside_tensors())

    def _beside_tensors(self):
        return [[{name: value for name, value in its.items() if not isinstance(value, torch.Tensor)} for its in optimizer.state.values()]
                for optimizer in self._optimizers]

    def put_back(self, copied):
        """What copied() has returned, into the tensors that there are now: a step may have put others in their places. False: it
        has put more or fewer there, and nothing was done."""
        copies, beside_tensors = copied
        if [list(map(list, its)) for its in self._beside_tensors()] != [list(map(list, its)) for its in beside_tensors]:
            return False
        of_models = self._of_models()
        counts = {name: len(self._large_tensors(name)) for name in self._large}
        if len(of_models) + sum(counts.values()) != len(copies):
            return False
        rest = iter(copies)
        with torch.no_grad():
            for tensor, before in zip(of_models, rest):
                tensor.copy_(before)
        for optimizer, of_parameters in zip(self._optimizers, beside_tensors):
            for its, before in zip(optimizer.state.values(), of_parameters):
                its.update(before)
        for name, count in counts.items():
            plain, _ = take_apart(self._parts[name].state_dict())
            self._parts[name].load_state_dict(put_together(plain, [next(rest) for _ in range(count)]))
        return True

    def tensors_to_take(self):
        """After take_shape(): where another rank's tensors() are put, before set()."""
        return [*self._of_models(), *(each for name in self._large for each in self._given[name])]

    def _of_models(self):
        found = [each.detach() for each in self._parameters]
        for optimizer in self._optimizers:
            for _, its in sorted(optimizer.state_dict()["state"].items()):
                found += [its[name] for name in sorted(its) if isinstance(its[name], torch.Tensor)]
        return found

    def _large_tensors(self, name):
        return take_apart(self._parts[name].state_dict())[1]

    def version_of_weights(self):
        """Differs after each change of a parameter, or of a large part, which may have other tensors by then."""
        large = [each for name in self._large for each in self._large_tensors(name)]
        self._compared.append(large)  # lives on, so that another tensor has another address
        return sum([each._version for each in self._parameters]), [(each.data_ptr(), each._version) for each in large]

    def why_not(self):
        """Why the optimizers' state, which is there after a step, cannot be carried; None: it can."""
        for optimizer in self._optimizers:
            for parameter, its in optimizer.state.items():
                if not isinstance(parameter, torch.Tensor) or not isinstance(its, dict):
                    return f"its optimizer has state that belongs to no parameter ({parameter!r})"
                for name, value in its.items():
                    if not isinstance(value, torch.Tensor):
                        continue
                    if value.layout != torch.strided:
                        return "its optimizer's state has sparse tensors (as momentum of an Embedding(sparse=True) is)"
                    if name != "step" and value.is_floating_point() and value.dtype != parameter.dtype:
                        return (f"its optimizer's {name} is of another type than its parameter ({value.dtype}, {parameter.dtype}), "
                                "which load_state_dict() changes")
        return None

    def pieces(self, bytes_of_piece, pieces_max):
        """How many times sums() is asked, until all tensors are summed; equal on all ranks, whatever their state is."""
        size = sum(each.nbytes for each in self._parameters) * 3  # as with Adam's moments
        size += sum(self._large.values())
        return max(1, min(pieces_max, -(-size // bytes_of_piece)))

    def sums(self, piece, pieces):
        """{name: sum} of this part of the tensors, with all settings."""
        found = {}  # settings first: a difference in them is the cause of others
        for number, optimizer in enumerate(self._optimizers):
            of = "the optimizer's" if len(self._optimizers) == 1 else f"optimizer {number}'s"
            for index, group in enumerate(optimizer.param_groups):
                for name, value in group.items():
                    if name != "params":
                        found.update(agreement.leaves(f"{name} of {of} parameter group {index}", value))
        tensors = {f"parameter {index}": each for index, each in enumerate(self._parameters)}
        found.update(self.sums_of_parts(small=True))
        for name in self._large:
            tensors.update(agreement.leaves(f"the part {name}", self._parts[name].state_dict(), sums=False))
        for number, optimizer in enumerate(self._optimizers):
            of = "the optimizer's" if len(self._optimizers) == 1 else f"optimizer {number}'s"
            for index, its in optimizer.state_dict()["state"].items():
                tensors.update((f"{of} {name} of parameter {index}", value) for name, value in its.items())
        for name, value in tensors.items():
            if zlib.crc32(name.encode()) % pieces == piece:
                found.update(agreement.leaves(name, value))
        return found

    def sums_of_parts(self, small=False):
        """{name: sum}; with `small` without those of many tensors."""
        return {path: value for name, part in self._parts.items() if not small or name not in self._large
                for path, value in agreement.leaves(f"the part {name}", part.state_dict())}

    def shape(self):
        """The optimizers' state without the contents of its tensors, and the forms of the large parts' tensors."""
        states = [{index: {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in its.items()}
                   for index, its in optimizer.state_dict()["state"].items()} for optimizer in self._optimizers]
        return states, {name: [each.to("meta") for each in self._large_tensors(name)] for name in self._large}

    def take_shape(self, shape):
        """For contents that are to come."""
        states, large = shape
        self._take_states([{index: {name: torch.empty_like(value, device="cpu") if isinstance(value, torch.Tensor) else value
                                    for name, value in its.items()} for index, its in its_state.items()} for its_state in states])
        self._take_large(large)

    def _take_states(self, states):
        for optimizer, state in zip(self._optimizers, states):
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
            optimizer._opt_called = True  # or a scheduler warns that it has not stepped yet

    def _take_large(self, large):
        self._given = {name: [torch.empty_like(each, device=own.device) for each, own in zip(its, self._large_tensors(name))]
                       for name, its in large.items() if name in self._large}

    def give(self, group, source, to):
        """Rank `source` sends its own to the ranks `to`, which call this, too."""
        rank = group.rank()
        if rank != source and rank not in to:
            return
        tensors = self.tensors() if rank == source else self.tensors_to_take()
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


    def broadcast(self, group, source, to, device, check):
        """Likewise, over NCCL: all ranks call it, and what is not taken is dropped. `check` awaits the device, and raises an exception
        if what the call has left must not be used."""
        if not to:
            return
        rank = group.rank()
        for piece in _pieces_of(self.tensors_to_take() if rank in to else self.tensors()):
            if rank == source:
                data = torch.cat([each.contiguous().view(-1).view(torch.uint8) for each in piece]).to(device)
            else:
                data = torch.empty(sum(each.nbytes for each in piece), dtype=torch.uint8, device=device)
            dist.broadcast(data, source, group=group)
            check()
            if rank in to:
                _put(data, piece)


class ShardedState(SharedState):
    """This rank's part of the state of a model whose parameters, or some of them, are DTensors (FSDP2, HSDP)."""

    def _of_models(self):
        return [_local(each) for each in super()._of_models()]

    def shape(self):
        states = [{index: {name: (is_sharded(value), _local(value).to("meta")) if isinstance(value, torch.Tensor) else value
                           for name, value in its.items()}
                   for index, its in optimizer.state_dict()["state"].items()} for optimizer in self._optimizers]
        return states, {name: [each.to("meta") for each in self._large_tensors(name)] for name in self._large}

    def take_shape(self, shape):
        states, large = shape
        of_optimizers = []
        for optimizer, its_state in zip(self._optimizers, states):
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            of_optimizers.append({index: {name: _empty(value, parameters[index]) if isinstance(value, tuple) else value
                                          for name, value in its.items()} for index, its in its_state.items()})
        self._take_states(of_optimizers)
        self._take_large(large)


def _local(tensor):
    return tensor.to_local() if is_sharded(tensor) else tensor


def _empty(form, parameter):
    """A tensor of an optimizer's state, which is sharded as its parameter is."""
    of_shard, meta = form
    if not of_shard:
        return torch.empty_like(meta, device="cpu")
    local = torch.empty_like(meta, device=parameter.device)
    return type(parameter.detach()).from_local(local, parameter.device_mesh, parameter.placements, shape=parameter.shape,
                                               stride=parameter.stride())


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
