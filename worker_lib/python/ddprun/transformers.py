"""A preempted job of Transformers' Trainer saves at the step that all ranks agree on, and leaves.

    from ddprun.transformers import LeaveCallback, last_checkpoint

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[LeaveCallback()])
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))

ddprun.keep() is left out: the Trainer takes its place in the data from a folder, and from nowhere else.
"""

from __future__ import annotations

import os
import pathlib

import accelerate
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

import ddprun
from ddprun.leaving import end

__all__ = ["LeaveCallback", "last_checkpoint"]


class LeaveCallback(TrainerCallback):
    """Asks ddprun.should_leave() after each step of the optimizer. If it is true, the Trainer saves a checkpoint, whatever
    `save_strategy` and `save_only_model` say, and when all ranks have saved, train() raises SystemExit(0) on all of them: what
    follows it in the program does not run, nor does on_train_end of other callbacks.

    An evaluation that is due after the step comes before the save; the last step of an epoch is left at the epoch's end. After the
    last step of the training it does not ask, and train() returns; so it does if an evaluation before the save ends the training.

    Give it as the last callback: on_save of the ones behind it is not called. The main thread calls."""

    def __init__(self):
        self._is_told = self._is_leaving = False

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_training_stop:
            return
        self._is_told = ddprun.should_leave()
        if self._is_told and not float(state.epoch).is_integer():
            self._save(args, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        if self._is_told and not control.should_training_stop:
            self._save(args, control)

    def _save(self, args, control):
        self._is_leaving = control.should_save = True
        args.save_strategy, args.save_only_model = SaveStrategy.STEPS, False  # "best" would drop should_save after an evaluation

    def on_save(self, args, state, control, **kwargs):
        if self._is_leaving and not control.should_training_stop:
            accelerate.PartialState().wait_for_everyone()
            end()


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The checkpoint of the latest step in `folder`, the Trainer's output_dir, or None. One whose writing was interrupted is passed
    over: trainer_state.json, which is written last, is not in it."""
    whole = (each.parent for each in pathlib.Path(folder).glob("checkpoint-*/trainer_state.json"))
    return max(map(str, whole), key=lambda each: int(each.rpartition("-")[2]), default=None)
