"""Batches of a loader that can be given again: to a step that is made again, and to a process that takes a rank's place,
which begins in the middle of an epoch. Used by ddprun.replace."""

import itertools

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler


def why_not(loader):
    """Why its batches cannot be given again; None: they can."""
    if iter(loader) is loader if not isinstance(loader, DataLoader) else False:
        return f"a batch of its {type(loader).__name__} cannot be given again: an iterator is at an end once"
    if not isinstance(loader, DataLoader):
        return None
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return f"its {type(dataset).__name__} is an IterableDataset, whose place cannot be put back"
    if getattr(loader, "persistent_workers", False) and not isinstance(loader.sampler, (DistributedSampler, SequentialSampler)):
        return "its DataLoader has persistent_workers and a sampler that draws random numbers"
    return None


class _Skipping:
    """A sampler without its first elements, the first time."""

    def __init__(self, sampler, count):
        self._sampler, self._count, self._first = sampler, count, None

    def __iter__(self):
        if self._first is not None:
            return iter(self._sampler)
        self._first = iter(self._sampler)
        return self._rest()

    def _rest(self):
        self.skip()
        yield from self._first

    def skip(self):
        """Now, if that was not done yet: where the order is drawn when the first element is asked for."""
        count, self._count = self._count, 0
        for _ in zip(range(count), self._first):
            pass

    def __len__(self):
        return len(self._sampler)


def generators_of(loader):
    """The generators of its own that a loader draws from when it begins an epoch."""
    found = []
    samplers = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    samplers.append(getattr(samplers[-1], "sampler", None))
    for each in samplers:
        generator = getattr(each, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is other for other in found):
            found.append(generator)
    return found


def begin(loader, skipped):
    """An iterator that begins after so many batches."""
    if skipped == 0:
        return iter(loader)
    if not isinstance(loader, DataLoader):
        batches = iter(loader)
        for _ in zip(range(skipped), batches):
            pass
        return batches
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    sampler = loader.__dict__[name]
    skipping = loader.__dict__[name] = _Skipping(sampler, skipped)  # setattr() is refused
    try:
        batches = iter(loader)
    finally:
        loader.__dict__[name] = sampler
    skipping.skip()
    return batches


def versions(batch):
    """Change when a tensor of the batch is written into."""
    if isinstance(batch, torch.Tensor):
        return (batch._version,)
    if isinstance(batch, (list, tuple)):
        return tuple(itertools.chain.from_iterable(map(versions, batch)))
    if isinstance(batch, dict):
        return tuple(itertools.chain.from_iterable(map(versions, batch.values())))
    return ()
