"""What a replacement must not change unseen: whether the ranks of a training still agree, and whether recoverable() was given
all that the training's state is made of. Used by ddprun.recovery.

Replicas are compared by what they hold. What they do not hold is looked for: objects with a state that recoverable() was not given,
and values (numbers, strings, tensors) of the program that were equal on all ranks when the training began, which a new process
has as the set-up has left them."""

import collections
import functools
import gc
import io
import itertools
import operator
import random
import sys
import types
import zlib

import torch

from ddprun import in_place, loading

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LISTS = (list, tuple, set, frozenset, collections.deque)
_TEXT_MAX = 200  # characters of a value that is told
_TEXT_DEPTH = 3  # how deep containers are in each other
_VALUES_DEPTH = 3  # how deep objects and containers are in each other whose values are compared
_WITH_ATTRIBUTES = ("argparse", "types", "collections")  # packages of Python's whose objects have attributes of the program's
_OF_OPTIMIZERS = ("state", "param_groups", "defaults")
# A frame of the program ends here: below it is how Python starts a program.
_OUTSIDE = ("importlib", "runpy", "ddprun", "_ddprun", "tqdm", "rich")
_GO_THROUGH = (enumerate, filter, map, zip)  # iterators that have others
_SAMPLES_MAX = 1000  # elements of a container that are looked at
_TENSORS_APART_MAX = 16  # a list with more tensors has one checksum for all of them
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

def plain_values(frames, optimizers, modules, loader, unchanged=()):
    """{where it is: value} of numbers, strings, containers of them and tensors that these frames, objects in them, the optimizers, the
    modules and the loader have; without the objects `unchanged`. A tensor and an array stand there as a checksum."""
    left_out = {id(each) for each in unchanged}
    found = {}
    for depth, frame in enumerate(reversed(frames)):
        function = frame.f_code.co_name
        for name, value in frame.f_locals.items():
            if not name.startswith("__") and not _is_bar(value):
                found.update((f"{depth} {function} {path}", _told(each)) for path, each in _values_in(name, value, left_out))
    for each in (loader, getattr(loader, "dataset", None), *loading.samplers_of(loader)[1:]):
        kind = type(each).__name__
        found.update((f"data {kind} {kind}.{name}", _told(value)) for name, value in getattr(each, "__dict__", {}).items()
                     if not isinstance(value, torch.Tensor))
    for number, optimizer in enumerate(optimizers):
        of = type(optimizer).__name__ if len(optimizers) == 1 else f"{number}:{type(optimizer).__name__}"
        found.update((f"optimizer {of} {name}", _told(value)) for name, value in _own_attributes(optimizer)
                     if name not in _OF_OPTIMIZERS)
    for number, module in enumerate(modules):
        for path, each in module.named_modules():
            of = path if len(modules) == 1 else f"{number}:{path}"
            found.update((f"model {of} {name}", _told(value)) for name, value in _own_attributes(each))
    return found


def _values_in(name, value, left_out):
    """(path, value) of a value of the program and of what it is made of. A list of plain values is told as a whole. Of other lists no
    elements are told but tensors: what a program has collected by then, a new process has not."""
    waiting = [(path, each, 0, True) for path, each in _near(name, value)]
    seen = set()
    for path, each, depth, is_told in waiting:  # it grows
        if isinstance(each, (types.ModuleType, type)) or id(each) in left_out:
            continue
        if is_told or isinstance(each, torch.Tensor) and each.numel() > 1:
            yield path, each
        if depth < _VALUES_DEPTH and id(each) not in seen and len(waiting) < _OBJECTS_MAX:
            seen.add(id(each))
            waiting += [(where, one, depth + 1, is_told) for where, one, is_told in _inside(path, each, depth)]


def _inside(path, value, depth):
    """(path, value, whether it is told) of what a value is made of. Objects of other packages have caches and the like, so that of an
    object which the program itself has only numbers and strings are told."""
    if isinstance(value, _LISTS):
        tensors = _tensors_in(value)
        if len(tensors) > _TENSORS_APART_MAX:
            return [(f"the {len(tensors)} tensors of {path}", _Together(tensors), True)]
        return [(where, each, False) for where, each in _one_level(path, value)] if tensors or _plain_text(value) is None else []
    package = type(value).__module__.split(".")[0]
    if isinstance(value, dict) or package in _WITH_ATTRIBUTES:
        return [(where, each, True) for where, each in _one_level(path, value)]
    is_others = "-packages/" in (getattr(sys.modules.get(type(value).__module__), "__file__", None) or "")
    if package in sys.stdlib_module_names or is_others and depth > 0:
        return []
    return [(where, each, not is_others or type(each) in _PLAIN) for where, each in _one_level(path, value)]


class _Together:
    """Tensors that are told by one checksum."""

    def __init__(self, tensors):
        self.tensors = tensors


def _tensors_in(value):
    """The tensors of a list of tensors, or of lists of tensors (batches); none, if anything else is in it."""
    found = []
    for each in itertools.islice(value, _SAMPLES_MAX):
        of_each = each if isinstance(each, (list, tuple)) else (each,)
        if not all(map(_has_checksum, of_each)):
            return []
        found += of_each
    return found


def _has_checksum(value):
    return (type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
            and value.device.type in ("cpu", "cuda"))


def _own_attributes(value):
    """What is not PyTorch's."""
    is_of_torch = type(value).__module__.split(".")[0] == "torch"
    for name, each in vars(value).items():
        if not name.startswith("_") or not is_of_torch and name not in _OF_TORCH:
            yield name, each


def locals_among(names):
    """The locals among these names of plain_values(): {frame's depth and function: [(name, its local)]}."""
    found = {}
    for name in names:
        depth, function, path = name.split(" ", 2)
        if depth.isdecimal() and path.isidentifier():
            found.setdefault((int(depth), function), []).append((name, path))
    return found


def numbers_now(frames, of_frames):
    """{name: value} of the numbers and strings among what locals_among() has returned."""
    found = {}
    for depth, frame in enumerate(reversed(frames)):
        names = of_frames.get((depth, frame.f_code.co_name))
        if names:
            there = frame.f_locals
            found.update((name, there[local]) for name, local in names if local in there and type(there[local]) in _PLAIN)
    return found


def told(values):
    """As plain_values() has them."""
    return {name: _told(value) for name, value in values.items()}


def _is_bar(value):
    return type(value).__module__.split(".")[0] in ("tqdm", "rich")


def _told(value):
    if type(value) is _Together:
        sums = ",".join([f"{total:08x}" for total, *_ in map(sum_of, value.tensors)])
        return f"<{len(value.tensors)} tensors, checksum {zlib.crc32(sums.encode()):08x}>"
    if _has_checksum(value):
        total, shape, _ = sum_of(value)
        return f"<{'×'.join(map(str, shape)) or 'a number'}, checksum {total:08x}>"
    text = _plain_text(value)
    if text is None:
        return f"a {type(value).__name__}"
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}… <checksum {zlib.crc32(text.encode()):08x}>"


def _plain_text(value, depth=_TEXT_DEPTH):
    """A text of a plain value, or of a container of plain values, of whose elements the first ones are told; None: it is neither."""
    if type(value) in _PLAIN:
        return repr(value)
    # What has ended a step is no state of the training, and a new process has not seen it.
    if isinstance(value, (BaseException, types.TracebackType)) or isinstance(value, type) and issubclass(value, BaseException):
        return repr(None)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return f"<array of {'×'.join(map(str, value.shape))}, checksum {zlib.crc32(value.tobytes()):08x}>"
    if type(value) is itertools.count or numpy is not None and isinstance(value, numpy.generic):
        return repr(value)
    if depth == 0 or not isinstance(value, (dict, *_LISTS)):
        return None
    is_set = isinstance(value, (set, frozenset))  # each process has an order of its own
    texts = [_plain_text(each, depth - 1) for each in (value if is_set else itertools.islice(value, _SAMPLES_MAX))]
    if isinstance(value, dict):
        values = [_plain_text(each, depth - 1) for each in itertools.islice(value.values(), _SAMPLES_MAX)]
        texts = [None if None in pair else ": ".join(pair) for pair in zip(texts, values)]
    if None in texts:
        return None
    more = f", … of {len(value)}" if len(value) > len(texts) else ""
    begin, end = "[]" if isinstance(value, (list, tuple, collections.deque)) else "{}"
    return f"{begin}{', '.join(sorted(texts) if is_set else texts)}{more}{end}"


def _is_plain(text):
    return not text.startswith("a ")


def equal_values(of_ranks, before=(), unequal=frozenset()):
    """(the names of plain values that are equal on all ranks, the names of those that are not). `before` and `unequal` are what an
    earlier call has returned: what was unequal once is each rank's own."""
    names = dict.fromkeys(name for its in of_ranks for name in its)
    now_equal, now_unequal = set(), set(unequal)
    for name in names:
        texts = {its.get(name) for its in of_ranks}
        if None in texts:  # a rank has not set it yet
            continue
        if len(texts) > 1:
            now_unequal.add(name)
        elif all(map(_is_plain, texts)):
            now_equal.add(name)
    return sorted((now_equal | set(before)) - now_unequal), now_unequal


def difference_of_values(names, of_ranks, frame):
    """A sentence on the first of these values that two ranks differ in; None: there is none. A value that a rank has not set
    yet is written there before it is read."""
    for name in names:
        known = [(rank, its[name]) for rank, its in enumerate(of_ranks) if name in its]
        differing = [(rank, text) for rank, text in known if text != known[0][1]]
        if not differing:
            continue
        (rank, text), (other, its_text) = known[0], differing[0]
        where = _where(name, frame)
        return (f"{where} is {text} on rank {rank} and {its_text} on rank {other} after a replacement: "
                "a new process does not have it; count with step.number, or give it to recoverable() as a part")
    return None


def _where(name, frame):
    kind, owner, what = name.split(" ", 2)
    if kind == "optimizer":
        return f"the attribute {what} of the optimizer ({owner})"
    return f"the attribute {what} of the model's {owner or 'module'}" if kind == "model" else f"{_place(frame)}: {what}"


def tensor_of_each_rank(at_first, now, frame):
    """A sentence on the first tensor that all ranks had the same of at their first step and that each has its own of at the second one (what
    a recurrent model passes from one step to the next); None: there is none."""
    form = lambda text: text.partition(", checksum ")[0] if text is not None and text.startswith("<") else None
    for name in now[0]:
        before, after = {its.get(name) for its in at_first}, {its.get(name) for its in now}
        forms = set(map(form, before | after))
        if len(before) == 1 and len(after) > 1 and len(forms) == 1 and not forms & {None, "<a number"}:
            return (f"{_where(name, frame)} is a tensor that each rank has its own of, and that changes from one step to the next: "
                    "give it in an object with state_dict() and load_state_dict() as per_rank={…}")
    return None


# ---- objects with a state that were not given

def not_given(frames, given, unchanged, generators):
    """A sentence on the first object with a state in these frames, their globals, and one level deep in attributes, containers
    and what a function has from around it, that is none of `given`; None: there is none.

    `generators` is a list for a training's steps: a generator of random numbers, and an iterator, counts if an earlier call has put it
    there, since one that each step makes anew has no state from step to step."""
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
                if kind is not None and kind.startswith(("a generator", "an iterator")) and id(each) not in seen_before:
                    generators.append(each)
                elif kind is not None and kind.startswith("an iterator"):
                    return (f"{_place(frame)}: {path} is {kind}, and where it has got to cannot be put back: let training.steps(…) go "
                            "through all that a step needs, or put it into unchanged=(…) if training takes nothing from it")
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
    """(path, object) of a value of the program and of what is one level below it."""
    for path, each in _near(name, value):
        yield path, each
        yield from _one_level(path, each)


def _near(name, value):
    """What a function has from around it, and the object of a method, are as near as the function itself."""
    near = [(name, value)]
    if isinstance(value, functools.partial):
        near += [(f"{name}.{path}", each) for path, each in [*_one_level("args", value.args), *_one_level("keywords", value.keywords)]]
        value = value.func
    if isinstance(value, types.MethodType):
        near.append((f"{name}.__self__", value.__self__))
    elif isinstance(value, types.FunctionType):
        near += _around(name, value)
    return near


def _around(name, function):
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f"{name}.{variable}", cell.cell_contents
        except ValueError:  # it has no value yet
            pass


def _one_level(name, value):
    if isinstance(value, dict):
        its = [(f"{name}[{key!r}]", each) for key, each in list(value.items())[:_SAMPLES_MAX]]
    elif isinstance(value, _LISTS):
        its = [(f"{name}[{index}]", each) for index, each in enumerate(itertools.islice(value, _SAMPLES_MAX))]
    elif isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.utils.data.DataLoader,
                            torch.utils.data.Dataset, torch.utils.data.Sampler)):
        return []
    elif type(value).__module__.split(".")[0] in ("ddprun", "torch", "builtins", "contextlib"):
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
    if _is_under_way(value):
        return f"an iterator ({type(value).__name__})"
    if all(callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict")) and not _is_data(value):
        # Where it has nothing but given objects and plain values, these are compared.
        its = getattr(value, "__dict__", {}).values()
        return None if its and all(id(each) in known or type(each) in _PLAIN for each in its) else (
            f"an object with a state_dict() ({type(value).__name__})")
    return None


def _is_under_way(value):
    """An iterator that is not known to be at its end, and does not go through steps."""
    if isinstance(value, types.GeneratorType):
        return value.gi_frame is not None and not _is_outside(value.gi_frame)
    if type(value) in _GO_THROUGH:
        return any(map(_is_under_way, value.__reduce__()[1]))
    if not hasattr(type(value), "__next__") or isinstance(value, io.IOBase) or type(value) is itertools.count:  # that is a value
        return False
    return operator.length_hint(value, 1) > 0


def ways_around(steps):
    """(a sentence on an iterator by which the program goes through these steps, and which a new process begins anew, or None; the frames
    of the program's generators that go through them)"""
    frames, waiting, seen = [], [steps], set()
    while waiting:
        for each in gc.get_referrers(waiting.pop()):
            is_of_loop = type(each) is tuple or type(each) in _GO_THROUGH or type(each).__module__ == "itertools"
            if id(each) in seen or not is_of_loop and not isinstance(each, types.GeneratorType):
                continue
            seen.add(id(each))
            waiting.append(each)
            if type(each).__module__ == "itertools" or type(each) in _GO_THROUGH and _is_under_way(each):
                return (f"its loop goes through training.steps(…) by {type(each).__name__}(), which a new process begins anew: let "
                        "training.steps(…) go through all that a step needs"), frames
            if isinstance(each, types.GeneratorType) and each.gi_frame is not None and not _is_outside(each.gi_frame):
                frames.append(each.gi_frame)
    return None, frames


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
