"""The loop of a training that `ddprun.recoverable()` returns. It gives the batches and counts the steps; where ddprun replaces
workers in place, ddprun.recovery does the rest. Used by ddprun.recoverable alone."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ddprun import leaving, loading
from ddprun.worker_state import Generators

_END = object()
# What is carried without being given, or may be an option one day.
_NO_PARTS = ("model", "models", "optimizers", "sampler", "loader", "loaders", "state", "step", "steps", "epoch", "epochs")


def make(model, optimizer, parts, per_rank, unchanged, memory_every, on_leave, more_parts) -> Training:
    """ddprun.recoverable()."""
    for name in more_parts:
        if name in _NO_PARTS:
            raise TypeError(f"recoverable() has no option {name!r}" + (
                ": the loader's sampler is carried by training.steps(loader)" if name == "sampler" else
                f"; a part with this name is given as parts={{{name!r}: …}}"))
        if name in parts:
            raise TypeError(f"the part {name!r} is given twice: in parts and as a keyword")
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for each in models:
        if not isinstance(each, torch.nn.Module):
            raise TypeError(f"model is a {type(each).__name__}: give a DistributedDataParallel, or a sequence of several")
    if not models or not optimizers:
        raise TypeError("recoverable() needs a model and an optimizer, or sequences of them")
    given = [*parts.values(), *more_parts.values(), *per_rank.values()]
    given += [each for its in given if isinstance(its, (list, tuple)) for each in its]
    given += [*models, *optimizers]
    parts, per_rank = _parts({**parts, **more_parts}), _parts(per_rank)
    unwrapped = [_unwrapped(each) for each in optimizers]
    optimizers = [its for its, _ in unwrapped]
    for scaler in {id(its): its for _, its in unwrapped if its is not None and its not in parts.values()}.values():
        parts[f"scaler of {len(parts)}"] = scaler
    given += [*optimizers, *parts.values()]
    place = Place()
    from ddprun import recovery
    memory = None
    if memory_every > 0:
        from ddprun.memory import Memory
        from ddprun.worker_state import states_of
        why = recovery.why_not_pickled({**parts, **per_rank})
        if why is not None:
            raise TypeError(f"memory_every cannot keep the state: {why}")
        memory = Memory(models, *states_of(models, optimizers, parts, per_rank), memory_every)
    found = memory.find() if memory is not None else None
    its = recovery.recovery_of(models, optimizers, parts, per_rank, given, tuple(unchanged), place)
    if its is None:
        device = next((each.device for module in models for each in module.parameters()), None)
        generators = Generators(device if device is not None and device.type == "cuda" else None)
    else:
        generators = its.generators
    training = Training(its, place, generators, memory, on_leave)
    if found is not None:
        training._go_on_from(*found)
    leaving.count_by(lambda: place.committed)
    return training


def _unwrapped(optimizer):
    """(the optimizer of PyTorch's in a framework's wrapper, which has its state and no more; the wrapper's GradScaler)"""
    scaler = None
    while isinstance(its := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        if getattr(optimizer, "state", None) is not its.state or getattr(optimizer, "param_groups", None) is not its.param_groups:
            break
        optimizer, scaler = its, getattr(optimizer, "scaler", None) or scaler
    return optimizer, scaler


class _Stated:
    """A generator of random numbers as a part."""

    def __init__(self, get, put):
        self._get, self._put = get, put

    def state_dict(self):
        return {"state": self._get()}

    def load_state_dict(self, state):
        self._put(state["state"])


def _parts(given) -> dict:
    """{name: object with state_dict() and load_state_dict()}"""
    found = {}
    for name, part in given.items():
        if isinstance(part, (list, tuple)):
            found.update(_parts({f"{name}[{index}]": each for index, each in enumerate(part)}))
        elif isinstance(part, torch.Generator):
            found[name] = _Stated(part.get_state, part.set_state)
        elif isinstance(part, random.Random):
            found[name] = _Stated(part.getstate, part.setstate)
        elif hasattr(part, "bit_generator"):  # NumPy's
            found[name] = _Stated(lambda its=part.bit_generator: its.state,
                                  lambda state, its=part.bit_generator: setattr(its, "state", state))
        elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            found[name] = part
        elif part is not None:
            raise TypeError(f"the part {name!r} is a {type(part).__name__}, which has no state_dict() and load_state_dict(): give it "
                            "both, or count with step.number what it counts")
    return found


@dataclasses.dataclass
class Place:
    """Where a rank is in its loops; equal on all ranks at the entry of a step."""
    committed: int = 0  # steps of the whole training
    epoch: int = 0
    loop: int = 0  # over steps() in this epoch
    steps: int = 0  # that this loop has given and that were committed or skipped

    def in_loops(self) -> tuple[int, int, int]:
        return self.epoch, self.loop, self.steps


@dataclasses.dataclass
class Resume:
    """Where the loops begin instead of at their beginning."""
    place: tuple[int, int, int]
    began: bytes | None  # how the loop there began; None: that loop is over
    before: Any  # generators before the batch there is loaded; None: as they are when `restore` is called
    of_processes: dict  # generators of the loader's processes
    restore: Any  # a function that puts the rank's own state back, as it is before the batch is given


class Step:
    """One step of the optimizer: `with step as batch:`.

    number     of the step, from 0, counted over the whole training; the same on all ranks
    epoch      in which it is
    committed  after the block: whether the step counts, which is the same on all ranks. It does in whatever way the block was left, also
               by `continue` or `break` before the optimizer's step; but for an exception of the program, and for a step in which a
               rank was lost, which is made again
    made       whether the block has run to its end here. Where it has not and the step is committed, a rank was lost when other
               ranks had ended the step, and this rank was given their state
    """
    __slots__ = ("number", "epoch", "committed", "made", "_training", "_batch", "_state")

    def __init__(self, training: Training, batch: Any, number: int, epoch: int):
        self.number, self.epoch, self.committed, self.made = number, epoch, False, False
        self._training, self._batch, self._state = training, batch, "given"

    def __repr__(self) -> str:
        return f"<step {self.number} of epoch {self.epoch}: {'committed' if self.committed else self._state}>"

    def __enter__(self) -> Any:
        if self._state != "given":
            raise RuntimeError(f"step {self.number} is {self._state} already: each step of training.steps(…) is entered once")
        if self._training._step is not self:
            raise RuntimeError(f"step {self.number} is over: its loop over training.steps(…) has gone on or has ended")
        self._state = "entered"
        batch, self._batch = self._batch, None
        self._training._enter(sys._getframe(1))
        return batch

    def __exit__(self, kind, error, trace) -> bool:
        self._state = "left"
        return self._training._leave(self, error)

    def skip(self) -> None:
        """This batch is not trained on. All ranks skip the same steps, and a skipped step has no number of its own."""
        if self._state != "given":
            raise RuntimeError(f"step {self.number} is {self._state} already and cannot be skipped")
        self._state = "skipped"
        self._training._skip()


class Training:
    """What ddprun.recoverable() returns. All calls are of the main thread."""

    def __init__(self, recovery: Any, place: Place, generators: Generators, memory: Any = None, on_leave: Any = None):
        self._recovery, self._memory = recovery, memory  # None: no worker is replaced in place; nothing is kept in memory
        self._place, self._generators, self._on_leave = place, generators, on_leave
        self._before, self._of_processes = None, {}  # generators before the batch of a step that is kept was loaded
        self._states: dict = {}  # generators of the loader's processes
        self._at_first_entry: Any = None  # a function
        self._step: Step | None = None  # the last one that was given in a loop that is not over
        self._loop: weakref.ref | None = None
        self._resume: Resume | None = None
        self._has_epochs = self._is_again = False
        self._epochs_given = 0
        self._began, self._why_no_position = b"", "no loop has begun"
        self._hidden_state = loading.HiddenState()

    # ---- for the program

    @property
    def committed(self) -> int:
        """Steps that were committed, over the whole training; the same on all ranks between two steps."""
        return self._place.committed

    @property
    def is_replaceable(self) -> bool:
        """Whether a rank that dies now is replaced in place."""
        return self._is_on()

    @property
    def position(self) -> dict:
        """Where this rank is: for a checkpoint beside the states of model, optimizer and parts, one of each rank. It has the place
        in the loops, what the order of the loader was drawn from, and the random numbers of PyTorch, Python and NumPy. It is read
        in a loop over steps(), after the block of a step; elsewhere RuntimeError is raised."""
        if self._step is None or self._step._state == "entered":
            raise RuntimeError("training.position is read in a loop over training.steps(…), after the block of a step")
        if not self._began:
            raise RuntimeError(f"there is no training.position: {self._why_no_position}")
        return {"place": dataclasses.astuple(self._place), "began": self._began, "now": self._generators.pickled()}

    def start_at(self, position: dict) -> None:
        """Before the first loop: epochs() and steps() begin where `position` was read, with its random numbers. A process that
        takes the place of a rank has a place already, and keeps that."""
        if self._loop is not None:
            raise RuntimeError("start_at() comes before the first loop over training.steps(…)")
        if self._at_first_entry is not None:
            raise RuntimeError(f"the training goes on from step {self.committed}, which was in memory (memory_every): load a checkpoint "
                               "and call start_at() only if training.committed is 0")
        if self._recovery is not None and self._recovery.has_taken_place:
            return
        committed, *place = position["place"]
        self._place.committed = committed
        generators = self._generators.unpickled(position["now"])
        self._resume = Resume(tuple(place), position["began"], generators, {}, lambda: None)
        if self._recovery is not None:
            self._recovery.started_at()

    def _go_on_from(self, step, place, began, before, of_processes, parts_given, restore, settings) -> None:
        """Like start_at(), where all ranks have died and the state is put back."""
        if self._recovery is not None and self._recovery.has_taken_place:
            return
        self._place.committed = step
        self._resume = Resume(tuple(place), began, before, of_processes, parts_given)

        def at_first_entry():  # after what the program does on its way there
            self._memory.set_settings(settings)
            restore()

        self._at_first_entry = at_first_entry
        if self._recovery is not None:
            self._recovery.started_at()

    def epochs(self, epochs: int | Iterable) -> Iterator:
        """Yields 0, 1, … up to `epochs`, or what an iterable has; begins where the training is to go on."""
        self._has_epochs = True
        its = range(epochs) if hasattr(epochs, "__index__") else epochs
        for index, epoch in enumerate(its, self._epochs_given):
            self._epochs_given = index + 1
            resume = self._resuming()
            if resume is not None and index < resume.place[0]:
                continue
            self._place.epoch, self._place.loop = index, 0
            try:
                yield epoch
            except GeneratorExit:
                if self._memory is not None:  # where another loop over epochs() begins would not be known
                    self._memory.turn_off("its loop over training.epochs(…) was left by break, return or an exception", says=False)
                raise
        if self._recovery is not None:
            self._recovery.withdraw()

    def steps(self, loader: Iterable, per_step: int | None = None) -> Steps:
        """Returns the steps of one loop over `loader`, each with a batch; with `per_step`, each with a list of so many batches
        (the last one of fewer). enumerate() and tqdm() may be around it; a tqdm around the loader is told of each batch."""
        if per_step is not None and per_step < 1:
            raise ValueError(f"per_step is {per_step}: a step has at least one batch")
        return Steps(self, loader, per_step)

    # ---- loops

    def _is_on(self) -> bool:
        return self._recovery is not None and not self._recovery.is_off

    def _resuming(self) -> Resume | None:
        if self._recovery is not None and self._recovery.resume is not None:
            return self._recovery.resume
        return self._resume

    def _resumed(self) -> None:
        self._resume = None
        if self._recovery is not None:
            self._recovery.resume = None

    def _go(self, loader: Any, per_step: int | None) -> Iterator[Step]:
        last = self._loop() if self._loop is not None else None
        if last is not None and last.gi_frame is not None:
            raise RuntimeError("a loop over training.steps(…) begins while one is not over (zip(), a loop in a loop): zip() the loaders")
        its = self._go_through(loader, per_step)
        self._loop = weakref.ref(its)  # it ends when the program leaves it
        return its

    def _go_through(self, loader, per_step):
        place, recovery = self._place, self._recovery
        loader, bar = loading.without_bar(loader)
        if self._is_on():
            why = loading.why_not(loader)
            if why is None and place.loop > 0 and not self._has_epochs:
                why = "its loop over steps begins again: the loop around it must be over training.epochs(…)"
            if why is not None:
                recovery.refuse(why)
        if self._memory is not None:
            self._memory.check(loader)
        resume = self._resuming()
        if resume is not None and place.loop < resume.place[1]:
            place.loop += 1
            return
        place.steps = resume.place[2] if resume is not None else 0
        if resume is not None and resume.began is None:
            self._end_of_lost_loop(resume)
            return
        batches = iter(self._begin(loader, resume, per_step or 1))
        if per_step is not None:
            batches = _chunks(batches, per_step)
        try:
            yield from self._give_all(batches, bar, per_step or 1)
        except GeneratorExit:
            if self._is_again:
                recovery.exit_for("a loop over training.steps(…) was left (break, return, or an exception behind the block) after a step "
                                  "that is made again: write `if step.committed:` before what follows the block")
            raise
        finally:
            self._end_loop()

    def _give_all(self, batches, bar, batches_per_step):
        place, recovery = self._place, self._recovery
        if bar is not None:
            bar.update(place.steps * batches_per_step)
        while True:
            if self._step is not None and self._on_leave is not None and leaving.leaves_at(place.committed):
                self._leave_job()
            is_on = self._is_on()
            if is_on:
                recovery.note_before_batch()
            if self._memory is not None and self._memory.is_due(place.committed):
                self._before, self._of_processes = self._generators.now(), dict(self._states)
            batch = next(batches, _END)
            if batch is _END:
                break
            if is_on:
                versions = loading.versions(batch)
                recovery.note_given()
            if self._memory is not None and self._memory.is_due(place.committed):
                self._memory.note_given()
            yield self._give(loading.copy_of(batch) if is_on else batch)
            self._check_taken()
            while self._is_again:
                if loading.versions(batch) != versions:
                    recovery.end_for("a batch cannot be given again: the step writes into it")
                recovery.restore_given()
                self._is_again = False
                yield self._give(loading.copy_of(batch))
                self._check_taken()
            if bar is not None:
                bar.update(len(batch) if batches_per_step > 1 else 1)
        if bar is not None:
            bar.close()

    def _leave_job(self) -> None:
        if self._recovery is not None:
            self._recovery.withdraw()
        self._on_leave()
        leaving.end()

    def _give(self, batch) -> Step:
        self._step = Step(self, batch, self._place.committed, self._place.epoch)
        return self._step

    def _check_taken(self) -> None:
        step = self._step
        if step._state == "given":
            raise RuntimeError(f"step {step.number} was neither entered nor skipped: write `with step as batch:` in the loop over "
                               "training.steps(…), or step.skip()")
        if step._state == "entered":
            raise RuntimeError(f"the next step was asked for inside of step {step.number}: its `with step as batch:` is not over")

    def _begin(self, loader, resume, batches_per_step):
        """The batches of the loop, and how it began noted or put back."""
        recovery, generators = self._recovery, self._generators
        if resume is None:
            self._began, why = b"", self._hidden_state.change(loader)
            try:
                self._began = loading.how_it_begins(loader, generators) if why is None else b""
            except Exception as error:  # the program's classes raise anything
                why = f"the state of its loader's sampler cannot be read ({type(error).__name__}: {error})"
            self._why_no_position = why
            if why is not None and self._is_on():
                recovery.refuse(why)
            if why is not None and self._memory is not None:
                self._memory.turn_off(why)
            if not self._is_on() and (self._memory is None or why is not None or loading.why_not(loader) is not None):
                return loader
            batches = loading.Batches(loader)
            self._states = batches.states
            return recovery.begin_loop(loader, batches, self._began) if self._is_on() else batches
        why = loading.why_not(loader) if resume.place[2] > 0 else None
        if why is not None:
            raise RuntimeError(f"the training cannot go on from step {self._place.committed}: {why}")
        if resume.place[2] > 0 and getattr(loader, "num_workers", 0) > 0 and not resume.of_processes:
            print("ddprun: the position has no random numbers of the loader's processes: they begin anew", file=sys.stderr)
        self._began = resume.began
        loading.begin_as(loader, generators, resume.began)
        batches = loading.Batches(loader, resume.place[2] * batches_per_step, resume.of_processes)
        resume.restore()
        if resume.before is not None:
            generators.restore(resume.before)
        self._states = batches.states
        self._resumed()
        return recovery.begin_loop(loader, batches, self._began) if self._is_on() else batches

    def _end_of_lost_loop(self, resume) -> None:
        """The process whose place this is had ended its last step, and the others have gone on behind this loop."""
        resume.restore()
        self._resumed()
        self._place.loop += 1

    def _end_loop(self) -> None:
        self._step = self._loop = None
        self._place.loop += 1
        self._place.steps = 0
        if self._recovery is not None and not self._has_epochs:
            self._recovery.withdraw()

    # ---- steps

    def _enter(self, frame) -> None:
        if self._at_first_entry is not None:
            restore, self._at_first_entry = self._at_first_entry, None
            restore()
        if self._is_on():
            self._recovery.enter(frame, self._loop())
        if self._recovery is not None and self._recovery.is_off:
            self._recovery.answer(is_at_entry=True)
        place = self._place
        # A snapshot of replicas that are not compared yet would take the place of a good one.
        is_compared = not self._is_on() or self._recovery.are_replicas_compared
        if self._memory is not None and is_compared and self._memory.is_due(place.committed):
            self._memory.keep(place.committed, place.in_loops(), self._began, self._before, self._of_processes)

    def _skip(self) -> None:
        if self._is_on():
            self._recovery.skipped()
        self._place.steps += 1

    def _leave(self, step: Step, error) -> bool:
        place, is_forgotten = self._place, False
        if error is None and self._is_on():
            error = self._recovery.check_step()
        if error is None and self._recovery is not None and self._recovery.is_off:
            self._recovery.answer(is_at_entry=False)
        if error is None:
            place.committed += 1
            step.committed = step.made = True
            if self._is_on():
                self._recovery.committed_step()
        elif self._is_on():
            is_forgotten = self._recovery.fail(error)
            step.committed = place.committed > step.number  # others had ended it
            self._is_again = is_forgotten and not step.committed
        if not self._is_again:
            place.steps += 1
        return is_forgotten


class Steps:
    """The steps of one loop; has a length where the loader has one."""

    def __init__(self, training: Training, loader: Any, per_step: int | None):
        self._training, self._loader, self._per_step = training, loader, per_step

    def __iter__(self) -> Iterator[Step]:
        return self._training._go(self._loader, self._per_step)

    def __len__(self) -> int:
        return -(-len(self._loader) // (self._per_step or 1))


def _chunks(batches, size):
    while chunk := list(itertools.islice(batches, size)):
        yield chunk


def end_process(why: str) -> None:
    """Where no exception would come through: while a loop is left."""
    print(f"ddprun: {why}", file=sys.stderr, flush=True)
    os._exit(1)
