"""Batches of a loader that can be given again: to a step that is made again, and to a process that takes a rank's place,
which begins in the middle of an epoch. Used by ddprun.training and ddprun.recovery."""

import collections
import contextlib
import os
import pickle
import random
import sys
import time

import torch
from torch.utils.data import DataLoader, IterableDataset, _utils, get_worker_info


def why_not(loader):
    """Why its batches cannot be given again; None: they can."""
    if not isinstance(loader, DataLoader):
        is_iterator = hasattr(loader, "__next__")
        return (f"a batch of its {type(loader).__name__} cannot be given again: an iterator is at an end once"
                if is_iterator else None)
    if type(loader).__iter__ is not DataLoader.__iter__:  # and may be ahead of the batch that it gives, or count its epochs
        return f"its {type(loader).__name__} is no plain DataLoader: it iterates in a way of its own"
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return f"its {type(dataset).__name__} is an IterableDataset, whose place cannot be put back"
    if loader.persistent_workers:
        return "its DataLoader has persistent_workers"
    if not getattr(loader, "in_order", True):
        return "its DataLoader gives batches in any order (in_order=False)"
    return None


# ---- processes of a DataLoader: their random numbers come with each batch

class _Carried:
    def __init__(self, batch, generators):
        self.batch, self.generators = batch, generators


class _Carrying:
    """A collate_fn that adds the generators of its process, if they have changed since the last batch."""

    def __init__(self, collate):
        self._collate, self._last = collate, None

    def __call__(self, samples):
        batch = self._collate(samples)
        state = _generators_of_process()
        self._last, state = state, state if state != self._last else None
        return _Carried(batch, state)


class _Beginning:
    """A worker_init_fn of a process whose first batch is not the first one: it goes on as the process that would have had
    this batch."""

    def __init__(self, initialize, skipped, count, states):
        self._initialize, self._skipped, self._count, self._states = initialize, skipped, count, states

    def __call__(self, number):
        about = get_worker_info()
        before, number = number, (self._skipped + number) % self._count
        first_seed = about.seed - before
        for name, value in (("id", number), ("seed", first_seed + number)):
            object.__setattr__(about, name, value)  # setattr() is refused
        random.seed(about.seed)
        torch.manual_seed(about.seed)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed(_utils.worker._generate_state(first_seed, number))
        if self._initialize is not None:
            self._initialize(number)
        state = self._states.get(number)
        if state is not None:
            _set_generators_of_process(state)


def _generators_of_process():
    of_numpy = sys.modules["numpy.random"].get_state() if "numpy.random" in sys.modules else None
    return pickle.dumps((torch.get_rng_state().numpy().tobytes(), random.getstate(), of_numpy))


def _set_generators_of_process(state):
    of_torch, of_python, of_numpy = pickle.loads(state)
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy.random"].set_state(of_numpy)


# In such a Python the child of a fork waits without an end if another thread was just entering the interpreter for the first
# time, as a thread of PyTorch's does to let go of a tensor after a call over Gloo: CPython's issue 112275.
_FORK_CAN_HANG = sys.version_info < (3, 10, 15) or (3, 11) <= sys.version_info < (3, 11, 10)
_SETTLE_LIMIT_S = 1


def _let_threads_settle():
    """Until all threads of PyTorch's in this process sleep at the same time. None is woken while no call is under way."""
    def threads():
        found = []
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/status") as file:
                about = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
                if about["Name"].startswith("pt_"):
                    found.append((thread, about["State"], about["voluntary_ctxt_switches"], about["nonvoluntary_ctxt_switches"]))
        return found

    before, deadline = None, time.monotonic() + _SETTLE_LIMIT_S
    while (now := threads()) != before or not all(state.startswith("S") for _, state, _, _ in now):
        if time.monotonic() > deadline:
            return
        before = now
        os.sched_yield()


class Batches:
    """An iterator over the batches of a loader that begins after `skipped` of them, and the generators of its processes;
    `states` are those of the iterator which gave the others."""

    def __init__(self, loader, skipped=0, states=None):
        self._processes = loader.num_workers if isinstance(loader, DataLoader) else 0
        self._given, self.states = skipped, dict(states or {})
        with contextlib.ExitStack() as changes:
            if self._processes > 0:
                changes.enter_context(_changed(loader, "collate_fn", _Carrying(loader.collate_fn)))
                if skipped > 0:
                    changes.enter_context(_changed(loader, "worker_init_fn", _Beginning(
                        loader.worker_init_fn, skipped, self._processes, self.states)))
            skipping = None
            if skipped > 0 and isinstance(loader, DataLoader):
                name = "sampler" if loader.batch_sampler is None else "batch_sampler"
                skipping = _Skipping(getattr(loader, name), skipped)
                changes.enter_context(_changed(loader, name, skipping))
            if self._processes > 0 and _FORK_CAN_HANG:
                _let_threads_settle()
            self._batches = iter(loader)
        if skipping is not None:
            skipping.skip()
        elif skipped > 0:
            for _ in zip(range(skipped), self._batches):
                pass

    def __iter__(self):
        return self if self._processes > 0 else self._batches

    def __next__(self):
        batch = next(self._batches)
        if batch.generators is not None:
            self.states[self._given % self._processes] = batch.generators
        self._given += 1
        return batch.batch


@contextlib.contextmanager
def _changed(loader, name, value):
    before = loader.__dict__[name]
    loader.__dict__[name] = value  # setattr() is refused
    try:
        yield
    finally:
        loader.__dict__[name] = before


class _Skipping:
    """A sampler without its first elements, for one epoch: a DataLoader with processes calls iter() twice before it asks for an
    element."""

    def __init__(self, sampler, count):
        self._sampler, self._count = sampler, count

    def __iter__(self):
        self._elements = iter(self._sampler)
        return self

    def __len__(self):
        return len(self._sampler)

    def __next__(self):
        self.skip()
        return next(self._elements)

    def skip(self):
        """Now: where the order is drawn when the first element is asked for."""
        count, self._count = self._count, 0
        for _ in zip(range(count), self._elements):
            pass


def generators_of(loader):
    """The generators of its own that a loader draws from when it begins an epoch."""
    generators = (getattr(each, "generator", None) for each in samplers_of(loader))
    return list(dict.fromkeys(each for each in generators if isinstance(each, torch.Generator)))  # each once


def samplers_of(loader):
    """The loader, and what it takes its order from."""
    found = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    return [each for each in (*found, getattr(found[-1], "sampler", None)) if each is not None]


# ---- how a loop over a loader begins: what its order is drawn from

def how_it_begins(loader, generators):
    """Pickled: all generators, those of the loader's own, and the states or epochs of its samplers."""
    samplers = [_state_of_sampler(each) for each in samplers_of(loader)]
    return pickle.dumps((generators.now(), [each.get_state() for each in generators_of(loader)], samplers))


class HiddenState:
    """What the loaders of a training have and how_it_begins() does not read: a list that a sampler shuffles in place, a counter. Such a
    state is seen when it has changed from one loop to a later one."""

    def __init__(self):
        self._at_first = {}  # by id, which nothing else has while the object is here

    def change(self, loader):
        """What has changed since the first loop over it; None: nothing has."""
        for each in samplers_of(loader):
            its = _sums_of_hidden(each)
            _, before = self._at_first.setdefault(id(each), (each, its))
            for name, total in its.items():
                if before.get(name) != total:
                    what = f"its {type(each).__name__} changes {name}" if name else f"its {type(each).__name__} of batches has changed"
                    return (f"{what} from one loop to the next, and a new process has what the set-up has left: "
                            "give it state_dict() and load_state_dict(), or let each loop make its order anew")
        return None


def _sums_of_hidden(each):
    if isinstance(each, (list, tuple)):
        return {"": hash(tuple(map(id, each)))}
    if type(each).__module__.split(".")[0] == "torch" or hasattr(each, "state_dict") and hasattr(each, "load_state_dict"):
        return {}
    found = {}
    for name, value in getattr(each, "__dict__", {}).items():
        is_value = isinstance(value, (bool, int, float, str, bytes, list, tuple, dict, set, collections.deque, torch.Tensor))
        if not is_value and type(value).__module__ != "numpy" or name == "epoch" and hasattr(each, "set_epoch"):
            continue
        with contextlib.suppress(Exception):  # what cannot be pickled
            found[name] = hash(pickle.dumps(value))
    return found


def begin_as(loader, generators, began):
    """Puts back what how_it_begins() returned."""
    at_begin, of_loader, samplers = pickle.loads(began)
    generators.restore(at_begin)
    for generator, state in zip(generators_of(loader), of_loader):
        generator.set_state(state)
    for sampler, state in zip(samplers_of(loader), samplers):
        if isinstance(state, dict):
            sampler.load_state_dict(state)
        elif state is not None:
            sampler.set_epoch(state)


def _state_of_sampler(sampler):
    if hasattr(sampler, "load_state_dict") and hasattr(sampler, "state_dict"):
        return sampler.state_dict()
    return getattr(sampler, "epoch", None) if hasattr(sampler, "set_epoch") else None


# ---- batches that may be given again

def copy_of(batch):
    """Its containers anew, with the same tensors: a step that puts another tensor into a list does not change the batch."""
    if type(batch) is dict:
        return {key: copy_of(value) for key, value in batch.items()}
    if type(batch) is list:
        return [copy_of(each) for each in batch]
    if type(batch) is tuple:
        return tuple([copy_of(each) for each in batch])
    return batch


def versions(batch):
    """Changes when a tensor of the batch is written into."""
    if isinstance(batch, torch.Tensor):
        return batch._version
    if isinstance(batch, dict):
        return [versions(each) for each in batch.values()]
    return [versions(each) for each in batch] if isinstance(batch, (list, tuple)) else None


def without_bar(loader):
    """(the loader in a tqdm, its bar), or (the loader, None)."""
    if type(loader).__module__.split(".")[0] == "tqdm" and getattr(loader, "iterable", None) is not None:
        return loader.iterable, loader
    return loader, None
