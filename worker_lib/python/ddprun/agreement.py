"""What a replacement must not change unseen: whether the ranks of a training still agree, and whether recoverable() was given
all that the training's state is made of. Used by ddprun.recovery.

Replicas are compared by what they hold. What they do not hold is looked for: objects with a state that recoverable() was not given,
and values (numbers, strings, tensors) of the program that were equal on all ranks when the training began, which a new process
has as the set-up has left them."""

import functools
import random
import sys
import types

import torch

from ddprun import in_place, loading

_PLAIN = (bool, int, float, str, type(None))
_TEXT_MAX = 200  # characters of a value that is told
# A frame of the program ends here: below it is how Python starts a program.
_OUTSIDE = ("importlib", "runpy", "ddprun", "_ddprun")
_SAMPLES_MAX = 1000  # elements of a container that are looked at
_DEPTH_MAX, _OBJECTS_MAX = 4, 10_000  # what a loader consists of: how deep, how many
# Attributes that PyTorch gives to objects of the program's classes.
_OF_TORCH = {*vars(torch.nn.Module()), "_opt_called", "_step_count", "_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name"}


def _is_outside(frame):
    name = frame.f_globals.get("__name__", "")
    return name.split(".")[0] in _OUTSIDE or frame.f_code.co_filename.startswith("<frozen ")


def frames_of(frame):
    """The frames of the program that lead to this one, the innermost first."""
    found = []
    while frame is not None:
        if not _is_outside(frame):
            found.append(frame)
        frame = frame.f_back
    return found


def _place(frame):
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


# ---- values

def plain_values(frames, optimizers, modules, loader):
    """{where it is: value} of numbers, strings and tensors that these frames, objects in them, the optimizers, the modules and the
    loader have. A tensor stands there as a checksum."""
    found = {}
    for depth, frame in enumerate(reversed(frames)):
        function = frame.f_code.co_name
        for name, value in frame.f_locals.items():
            if not name.startswith("__") and not isinstance(value, (types.ModuleType, type)) and not _is_bar(value):
                found.update((f"{depth} {function} {path}", _told(each)) for path, each in _values_in(name, value))
    for each in (loader, getattr(loader, "dataset", None), *loading.samplers_of(loader)[1:]):
        kind = type(each).__name__
        found.update((f"data {kind} {kind}.{name}", _told(value)) for name, value in getattr(each, "__dict__", {}).items()
                     if not isinstance(value, torch.Tensor))
    for number, optimizer in enumerate(optimizers):
        of = type(optimizer).__name__ if len(optimizers) == 1 else f"{number}:{type(optimizer).__name__}"
        found.update((f"optimizer {of} {name}", _told(value)) for name, value in _own_attributes(optimizer))
    for number, module in enumerate(modules):
        for path, each in module.named_modules():
            of = path if len(modules) == 1 else f"{number}:{path}"
            found.update((f"model {of} {name}", _told(value)) for name, value in _own_attributes(each))
    return found


def _values_in(name, value):
    """Lists have only tensors here: what a program has collected by then, a new process has not."""
    for path, each in _reached(name, value):
        is_in_list = path != name and isinstance(value, (list, tuple, set, frozenset))
        if not is_in_list or isinstance(each, torch.Tensor) and each.numel() > 1:
            yield path, each
        if isinstance(each, (dict, list, tuple)) and each is not value:  # an average in an object
            yield from ((where, one) for where, one in _one_level(path, each) if isinstance(one, torch.Tensor) and one.numel() > 1)


def _own_attributes(value):
    """What is not PyTorch's."""
    is_of_torch = type(value).__module__.split(".")[0] == "torch"
    for name, each in vars(value).items():
        if not name.startswith("_") or not is_of_torch and name not in _OF_TORCH:
            yield name, each


def locals_among(frames, names):
    """{name: value now} of those of these names of plain_values() that are locals."""
    found = {}
    for depth, frame in enumerate(reversed(frames)):
        begin = f"{depth} {frame.f_code.co_name} "
        there = frame.f_locals
        found.update((name, _told(there[name[len(begin):]])) for name in names
                     if name.startswith(begin) and name[len(begin):] in there)
    return found


def _is_bar(value):
    return type(value).__module__.split(".")[0] in ("tqdm", "rich")


def _told(value):
    if type(value) in _PLAIN:
        return repr(value)[:_TEXT_MAX]
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and value.device.type in ("cpu", "cuda"):
        total, shape, _ = sum_of(value)
        return f"<{'×'.join(map(str, shape)) or 'a number'}, checksum {total:08x}>"
    return f"a {type(value).__name__}"


def _is_plain(text):
    return not text.startswith("a ")


def equal_values(of_ranks):
    """The names of plain values that are equal on all ranks."""
    first, *others = of_ranks
    return sorted(name for name, text in first.items()
                  if _is_plain(text) and all(its.get(name) == text for its in others))


def difference_of_values(names, of_ranks, frame):
    """A sentence on the first of these values that two ranks differ in; None: there is none. A value that a rank has not set
    yet is written there before it is read."""
    for name in names:
        known = [(rank, its[name]) for rank, its in enumerate(of_ranks) if name in its]
        differing = [(rank, text) for rank, text in known if text != known[0][1]]
        if not differing:
            continue
        (rank, text), (other, its_text) = known[0], differing[0]
        kind, owner, what = name.split(" ", 2)
        if kind == "optimizer":
            where = f"the attribute {what} of the optimizer ({owner})"
        elif kind == "model":
            where = f"the attribute {what} of the model's {owner or 'module'}"
        else:
            where = f"{_place(frame)}: {what}"
        return (f"{where} is {text} on rank {rank} and {its_text} on rank {other} after a replacement: "
                "a new process does not have it; count with step.number, or give it to recoverable() as a part")
    return None


# ---- objects with a state that were not given

def not_given(frames, given, unchanged, generators):
    """A sentence on the first object with a state in these frames, their globals, and one level deep in attributes, containers
    and what a function has from around it, that is none of `given`; None: there is none.

    `generators` is a list for a training's steps: a generator of random numbers counts if an earlier call has put it there,
    since one that each step makes anew has no state from step to step."""
    seen_before = {id(each) for each in generators}
    known = {id(its) for each in unchanged for its in _parts_of(each)}
    for each in given:
        known.update(id(its) for its in _parts_of(each))
    for frame in frames:
        seen = [*frame.f_locals.items(), *((name, value) for name, value in frame.f_globals.items() if name in frame.f_code.co_names)]
        for name, value in seen:
            if isinstance(value, (types.ModuleType, type)) or id(value) in known:
                continue
            for path, each in _reached(name, value):
                kind = _kind_of(each, known) if id(each) not in known else None
                if kind is not None and kind.startswith("a generator") and id(each) not in seen_before:
                    generators.append(each)
                elif kind is not None:
                    return (f"{_place(frame)}: {path} is {kind} that recoverable() was not given: "
                            f"give it as a part ({name.split('.')[0]}=…), or put it into unchanged=(…) if training leaves it as it is")
    return None


def _parts_of(given):
    """An object that recoverable() was given, and what belongs to it."""
    yield given
    if isinstance(given, torch.nn.Module):
        yield from given.modules()
    yield from loading.generators_of(given)
    inner = getattr(given, "optimizer", None)
    while inner is not None and inner is not given:
        yield inner
        inner = getattr(inner, "optimizer", None)
    for name in ("scheduler", "scaler"):
        its = getattr(given, name, None)
        if its is not None and its is not given:
            yield its


def _reached(name, value):
    """(path, object) of a value of the program and of what is one level below it; what a function has from around it, and the
    object of a method, are as near as the function itself."""
    near = [(name, value)]
    if isinstance(value, functools.partial):
        near += [(f"{name}.{path}", each) for path, each in [*_one_level("args", value.args), *_one_level("keywords", value.keywords)]]
        value = value.func
    if isinstance(value, types.MethodType):
        near.append((f"{name}.__self__", value.__self__))
    elif isinstance(value, types.FunctionType):
        near += _around(name, value)
    for path, each in near:
        yield path, each
        yield from _one_level(path, each)


def _around(name, function):
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f"{name}.{variable}", cell.cell_contents
        except ValueError:  # it has no value yet
            pass


def _one_level(name, value):
    if isinstance(value, dict):
        its = [(f"{name}[{key!r}]", each) for key, each in list(value.items())[:_SAMPLES_MAX]]
    elif isinstance(value, (list, tuple, set, frozenset)):
        its = [(f"{name}[{index}]", each) for index, each in enumerate(list(value)[:_SAMPLES_MAX])]
    elif isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.utils.data.DataLoader,
                            torch.utils.data.Dataset, torch.utils.data.Sampler)):
        return []
    elif type(value).__module__.split(".")[0] in ("ddprun", "torch", "builtins"):
        return []
    else:
        its = [(f"{name}.{key}", each) for key, each in list(getattr(value, "__dict__", {}).items())[:_SAMPLES_MAX]]
    return its


def _kind_of(value, known):
    if isinstance(value, torch.nn.Module):
        its = [*value.parameters(), *value.buffers()]
        if not its or any(id(module) in known for module in value.modules()) and _has_no_own(value, known):
            return None
        return f"a model ({type(value).__name__})"
    if isinstance(value, torch.optim.Optimizer):
        return f"an optimizer ({type(value).__name__})"
    if isinstance(value, (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)):
        return f"a scheduler ({type(value).__name__})"
    if isinstance(value, torch.amp.GradScaler):
        return "a GradScaler" if value.is_enabled() else None
    if isinstance(value, torch.Generator) and value is not torch.default_generator:
        return "a generator of random numbers (torch.Generator)"
    if type(value) is random.Random:
        return "a generator of random numbers (random.Random)"
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, (numpy.Generator, numpy.RandomState)):
        return f"a generator of random numbers (numpy.random.{type(value).__name__})"
    if all(callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict")) and not _is_data(value):
        # Where it has nothing but given objects and plain values, these are compared.
        its = getattr(value, "__dict__", {}).values()
        return None if its and all(id(each) in known or type(each) in _PLAIN for each in its) else (
            f"an object with a state_dict() ({type(value).__name__})")
    return None


def _is_data(value):
    return type(value).__module__.split(".")[0] == "ddprun" or isinstance(
        value, (torch.utils.data.DataLoader, torch.utils.data.Dataset, torch.utils.data.Sampler))


def _has_no_own(module, known):
    """A wrapper around modules that were given, which adds no parameter and no buffer."""
    of_known = {id(each) for its in module.modules() if id(its) in known for each in [*its.parameters(), *its.buffers()]}
    return all(id(each) in of_known for each in [*module.parameters(), *module.buffers()])


def tensors_in_attributes(optimizer):
    """The name of an attribute of the optimizer's own that has tensors, which state_dict() does not know; None: there is none."""
    for name, value in vars(optimizer).items():
        if name in ("state", "param_groups", "defaults") or name.startswith("_"):
            continue
        its = value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else [value]
        for each in list(its)[:_SAMPLES_MAX]:
            if isinstance(each, torch.Tensor) or isinstance(each, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in each):
                return name
    return None


def generator_of_data(loader, given, unchanged):
    """A sentence on a generator that the order of a loader or its samples are drawn from, and that a new process has as the set-up
    has left it; None: there is none."""
    is_static = {id(each) for each in unchanged}
    carried = {id(each) for each in loading.generators_of(loader)}
    orders = [each for each in loading.samplers_of(loader) if not isinstance(each, (torch.utils.data.DataLoader, list, tuple, range))]
    for path, each, kind in _generators_within(orders, skips=torch.utils.data.Dataset):
        if id(each) not in carried and id(each) not in is_static:
            return (f"{path} is {kind}, and where the order of the batches has got to in it cannot be put back: let the order come from an "
                    "attribute `generator` (a torch.Generator), or put it into unchanged=(…) if no order is drawn from it")
    in_processes = getattr(loader, "num_workers", 0) > 0
    put_back = set() if in_processes else {id(each) for each in given}
    for path, each, kind in _generators_within([getattr(loader, name, None) for name in ("dataset", "collate_fn")], skips=()):
        if id(each) not in put_back and id(each) not in is_static:
            way = "" if in_processes else "give it in per_rank={…}, "
            return (f"{path} is {kind}, and samples are drawn from it: draw from the generators of PyTorch, Python and NumPy themselves, {way}"
                    "or put it into unchanged=(…) if training draws nothing from it")
    return None


def _generators_within(roots, skips):
    """(path, generator, its kind) of those that these objects are made of."""
    waiting = [(type(each).__name__, each, 0) for each in roots if each is not None]
    seen = set()
    while waiting and len(seen) < _OBJECTS_MAX:
        path, value, depth = waiting.pop(0)
        if id(value) in seen or isinstance(value, (types.ModuleType, type, torch.Tensor, *_PLAIN)):
            continue
        seen.add(id(value))
        kind = _kind_of(value, ())
        if kind is not None and kind.startswith("a generator"):
            yield path, value, kind
        elif depth < _DEPTH_MAX and not (depth > 0 and isinstance(value, skips)):
            waiting += [(where, each, depth + 1) for where, each in _made_of(path, value)]


def _made_of(path, value):
    its = [each for each in _reached(path, value) if each[1] is not value]
    if not its and not isinstance(value, torch.nn.Module):  # a dataset, a sampler
        its = [(f"{path}.{name}", each) for name, each in getattr(value, "__dict__", {}).items()]
    return its


# ---- inputs of a step that is made again

class Inputs:
    """The inputs of a forward; keeps them."""

    def __init__(self, inputs):
        self._leaves, self._form = torch.utils._pytree.tree_flatten(inputs)
        self._versions = loading.versions(self._leaves)

    def are_equal_to(self, before):
        """A tensor that was written into since is not compared."""
        versions = loading.versions(before._leaves)
        return self._form == before._form and all(
            _are_equal(one, other) for one, other, was, now in zip(self._leaves, before._leaves, before._versions, versions)
            if was == now)


def _are_equal(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and sum_of(one) == sum_of(other)
    return one == other if type(one) in _PLAIN and type(other) in _PLAIN else type(one) is type(other)


# ---- replicas

def sum_of(tensor):
    """A checksum of its contents: two tensors that differ in any one element have different sums."""
    its = tensor.detach()
    dense = (its.coalesce().to_dense() if its.is_sparse else its).cpu().contiguous()
    return in_place.stream_sum(dense.data_ptr(), dense.nbytes), tuple(its.shape), str(its.dtype)


def leaves(name, value, sums=True):
    """(name, something that can be compared) for all that is in dicts, lists and tuples; other objects are left out. Without
    `sums` tensors are as they are."""
    if isinstance(value, torch.Tensor):
        yield name, sum_of(value) if sums else value
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield from leaves(f"{name}[{key!r}]", value[key], sums)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from leaves(f"{name}[{index}]", each, sums)
    elif isinstance(value, _PLAIN):
        yield name, repr(value)


def difference_of_replicas(of_ranks):
    """(name, rank, other rank) of the first thing that differs; None: there is none."""
    names = list(dict.fromkeys(name for its in of_ranks for name in its))
    for name in names:
        for rank, its in enumerate(of_ranks):
            if its.get(name) != of_ranks[0].get(name):
                return name, 0, rank
    return None
