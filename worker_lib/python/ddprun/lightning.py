"""A preempted job of Lightning's Trainer saves at the step that all ranks agree on, and leaves.

    from ddprun.lightning import DataLoader, LeaveCallback

    leave = LeaveCallback("run/leave.ckpt")
    trainer = Trainer(callbacks=[leave], …)
    trainer.fit(module, DataLoader(data, batch_size=32), ckpt_path=leave.checkpoint("run/last.ckpt"))

Import it behind pytorch_lightning if the program uses that in place of lightning.

ddprun.keep() is left out: the Trainer makes its state for a file and takes it from a file, and has no other public calls.
"""

from __future__ import annotations

import os
import shutil
import sys

import torch

import ddprun
from ddprun.leaving import end
from ddprun.worker_state import Generators

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

__all__ = ["DataLoader", "LeaveCallback"]


class LeaveCallback(Callback):
    """Asks ddprun.should_leave() after each step of the optimizer. If it is true, the Trainer saves a checkpoint at `path`, which
    all nodes share, in place of the one that is there, and fit() raises SystemExit(0) on all ranks: what follows it in the
    program does not run.

    It does not ask after the training's last step, nor where the end of an epoch or a validation follows, which Lightning would
    leave out when it goes on from there; it asks again one step later. So it never does where each step is of that kind.

    The checkpoint has each rank's random numbers of PyTorch, Python and NumPy in this process, which are put back before the
    first step; not those of a loader's processes. The place in the epoch is in it if the loader has a state_dict(), as
    DataLoader of this module and torchdata's StatefulDataLoader; else Lightning begins with the epoch's first batches.

    Give it as the last callback: the hook on_train_batch_end of the module and of callbacks behind it is not called for the step,
    as before a save by ModelCheckpoint. The main thread calls."""

    def __init__(self, path: str | os.PathLike[str]):
        self._path, self._step, self._random = os.fspath(path), 0, []

    def checkpoint(self, *others: str | os.PathLike[str]) -> str | None:
        """The newest of `path` and `others` (files of ModelCheckpoint) that is there, or None: what fit() takes as ckpt_path."""
        return max(filter(os.path.exists, map(os.fspath, (self._path, *others))), key=os.path.getmtime, default=None)

    def on_train_start(self, trainer, pl_module):
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if len(self._random) == trainer.world_size:
            _generators(trainer).restore(Generators.unpickled(self._random[trainer.global_rank].numpy().tobytes()))
        self._random = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self._step:  # gradients are accumulated
            return
        self._step = trainer.global_step
        if self._step == trainer.max_steps or trainer.is_last_batch or _is_validated(trainer, batch_idx):
            return
        if ddprun.should_leave():
            self._leave(trainer)

    def _leave(self, trainer):
        self._random = [None] * trainer.world_size
        own = torch.frombuffer(bytearray(_generators(trainer).pickled()), dtype=torch.uint8)
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(self._random, own)
        else:
            self._random = [own]
        partial = self._path + ".partial"
        trainer.save_checkpoint(partial)
        trainer.strategy.checkpoint_io.teardown()  # one that writes in the background ends here
        if trainer.is_global_zero:
            if os.path.isdir(self._path):  # the strategy saves in parts
                shutil.rmtree(self._path)
            os.replace(partial, self._path)
        trainer.strategy.barrier("ddprun.lightning")
        end()

    def state_dict(self):
        return {"random": self._random}

    def load_state_dict(self, state_dict):
        self._random = state_dict["random"]


def _generators(trainer):
    device = trainer.strategy.root_device
    return Generators(device if device.type == "cuda" else None)


def _is_validated(trainer, batch_idx):
    every = trainer.val_check_batch if trainer.enable_validation else None  # infinite: at the end of an epoch
    number = trainer.fit_loop.total_batch_idx if trainer.check_val_every_n_epoch is None else batch_idx
    return bool(every) and (number + 1) % every == 0


class DataLoader(torch.utils.data.DataLoader):
    """PyTorch's, over a dataset with a length, with its place in the epoch in each checkpoint of Lightning. When it goes on from
    there, it loads the batches up to its place once more, and drops them. The order must not be drawn anew by a new process:
    that of the DistributedSampler which Lightning puts in is not; that of shuffle=True on one rank is."""
    _given = _first = 0

    def __iter__(self):
        first, self._first = self._first, 0
        for self._given, batch in enumerate(super().__iter__(), 1):
            if self._given > first:
                yield batch

    def state_dict(self):
        return {"given": self._given % len(self)}

    def load_state_dict(self, state):
        self._first = state["given"]
