"""A preempted job in a loop of one's own with Accelerate saves at the step that all ranks agree on, and leaves.

    from ddprun.accelerate import leave, rest, resume

    first = resume(accelerator, "run/states")              # after prepare()
    for epoch in range(first // len(loader), epochs):
        for number, batch in rest(accelerator, loader, epoch, first):
            ...
            leave(accelerator, "run/states", number + 1)   # the last line of the loop

ddprun.keep() needs no adapter: the loop calls it with the model and the optimizer that prepare() has returned, and goes on
with rest() as well.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import accelerate

import ddprun
from ddprun.leaving import end
from ddprun.worker_state import Generators

__all__ = ["leave", "rest", "resume", "save"]


def leave(accelerator: accelerate.Accelerator, folder: str | os.PathLike[str], done: int) -> None:
    """Returns on most calls. When the job is preempted, it saves with `done`, the number of batches of the whole training that are
    done, calls accelerator.end_training() and raises SystemExit(0) on all ranks: what follows in the program does not run.

    All ranks call it after each batch; it asks ddprun.should_leave() where the optimizer has made a step
    (accelerator.sync_gradients). After the last one it leaves as well, and the next start goes on behind the loop."""
    if accelerator.sync_gradients and ddprun.should_leave():
        save(accelerator, folder, done)
        accelerator.end_training()
        end()


def save(accelerator: accelerate.Accelerator, folder: str | os.PathLike[str], done: int) -> None:
    """accelerator.save_state() in `folder`, which all nodes share, in place of the state before it; resume() finds it. All ranks
    call it, and it returns when all have saved. Raises what save_state() raises."""
    state = pathlib.Path(folder, str(done))
    partial = state.with_suffix(".partial")
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(state, ignore_errors=True)
        partial.rename(state)
        for other in state.parent.iterdir():
            if other != state:
                shutil.rmtree(other)
    accelerator.wait_for_everyone()


def resume(accelerator: accelerate.Accelerator, folder: str | os.PathLike[str]) -> int:
    """accelerator.load_state() of the latest state in `folder` that was saved to its end; returns its `done`, or 0 where there is
    none. All ranks call it, after prepare() and register_for_checkpointing()."""
    done = max((int(each.name) for each in pathlib.Path(folder).glob("*") if each.name.isdecimal()), default=0)
    if done:
        accelerator.load_state(os.path.join(folder, str(done)))
    return done


def rest(accelerator: accelerate.Accelerator, loader: Any, epoch: int, first: int) -> Iterator[tuple[int, Any]]:
    """The batches of this epoch, without the `first` ones of the whole training, each with its number in the whole training. The
    random numbers of this process stay as they are while it goes to its place in the epoch; those of the loader's processes
    are drawn anew.

    `loader` is one that prepare() has returned, with a length. If it shuffles, the order is the same in each process only with
    DataLoaderConfiguration(use_seedable_sampler=True) and the same seed (accelerate.utils.set_seed) before prepare()."""
    loader.set_epoch(epoch)
    number = epoch * len(loader)
    if first > number:
        generators = Generators(accelerator.device if accelerator.device.type == "cuda" else None)
        now = generators.now()
        for number, batch in enumerate(accelerator.skip_first_batches(loader, first - number), first):
            if number == first:
                generators.restore(now)
            yield number, batch
    else:
        yield from enumerate(loader, number)
