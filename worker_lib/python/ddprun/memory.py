"""The state of a training in memory of the agent, every so many steps: `memory_every` of ddprun.recoverable(). What is kept is
the state at the entry of a step, as a process that takes the place of a rank has it. Used by ddprun.training."""

import os
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from ddprun import keeping, loading
from ddprun.worker_state import ShardedState


class Memory:
    """The main thread calls."""

    def __init__(self, models, own, shared, every):
        self._is_sharded = isinstance(shared, ShardedState)
        is_replicated = all(isinstance(each, DistributedDataParallel) for each in models)
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not self._is_sharded and not is_replicated:
            raise ValueError("memory_every keeps what all ranks of a DistributedDataParallel have the same of, or each rank's part of a "
                             "model of FSDP2: a model of another kind is kept by ddprun.keep()")
        self._own, self._shared, self._every = own, shared, every
        self._last, self._parts_given = 0, None

    def find(self):
        """(step, place in the loops, how the loop there began, generators before its batch, those of the loader's processes, a
        function that puts back per_rank as it was when the batch was given, a function that puts back all that only this rank
        has at the entry, settings at the entry), with the tensors put back; None: there is none."""
        found = keeping.kept_state()
        if found is None or "DDPRUN_PREPARED" in os.environ:  # its state comes from the others
            return None
        step, own, shared = found
        shared = own["sharded"] or shared
        self._shared.take_shape(shared["shape"])
        with torch.no_grad():
            for its, tensor in zip(self._shared.tensors_to_take(), shared["tensors"], strict=True):
                its.copy_(tensor)
        self._shared.set(shared["settings"])
        record = own["text"], own["data"].numpy().tobytes()
        (place, of_processes, parts_given), before, restore = self._own.read(record)
        self._last = step
        return (step, place, own["began"], before, of_processes, lambda: self._own.restore_parts(parts_given), restore,
                shared["settings"])

    def set_settings(self, settings):
        self._shared.set(settings)
        self._shared.forget_given()

    def check(self, loader):
        """A loop over it begins."""
        why = loading.why_not(loader)
        if why is not None:
            self.turn_off(why)

    def turn_off(self, why, says=True):
        if says and self._every != sys.maxsize:
            print(f"ddprun: no snapshots in memory from here on: {why}", file=sys.stderr, flush=True)
        self._every = sys.maxsize

    def is_due(self, step):
        return step > self._last and step % self._every == 0

    def note_given(self):
        self._parts_given = self._own.pickled_parts()

    def keep(self, step, place, began, before, of_processes):
        """At the entry of this step."""
        why = self._own.buffers.why_not() or self._shared.why_not()
        if why is not None:
            return self.turn_off(why)
        self._last = step
        text = self._own.text((place, of_processes, self._parts_given), before, self._own.generators.now())
        state = {"shape": self._shared.shape(), "tensors": self._shared.tensors(), "settings": self._shared.settings()}
        own = {"text": text, "data": self._own.buffers.flat(), "began": began, "sharded": state if self._is_sharded else None}
        keeping.keep_state(step, own, {"of": "recoverable", **({} if self._is_sharded else state)})
