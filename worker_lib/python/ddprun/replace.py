"""Workers that are replaced in place: one dies, the others stay (ddprun.join; worker_lib/README.md, "Replaced in place, in
Python"). Imported by join() alone.

    set-up ──join()──▶ between steps ◀──step()──▶ in a step          any ──refuse──▶ off

A step is committed on a rank when step() is over there. At most one step is committed on some ranks and not yet on others,
because each step waits for all. A rank that is behind is given the outcome of that step.

| record of the mirror | is written                                   | has                                              |
|----------------------|----------------------------------------------|--------------------------------------------------|
| begin                | when a loop over batches begins              | what the loader draws its order from             |
| entry of a step      | at its entry                                 | what only this rank has; schedulers, settings    |
| effect of a step     | when the model's gradients begin to be there | what only this rank has, as it is after the step |
"""

import base64
import itertools
import json
import os
import pickle
import sys
import threading
import zlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddprun import agreement, in_place, loading, mirror
from ddprun.recovery_link import RecoveryLink
from ddprun.worker_state import OwnState, SharedState, Versions, layout_of, make_reducer_again

# From the failure of a call until the agent says what becomes of the round.
_NEWS_LIMIT_S = 30
# The buckets of DDP are those of all later steps from the second one on.
_OFFERS_AFTER = 2
_PLACES = 6  # of the mirror: entry and effect of an even and of an odd step, two begins
_MIRROR_BYTES_MIN = 32768
# After a replacement replicas are compared within so many steps, with about so many bytes in each.
_COMPARED_STEPS_MAX = 8
_COMPARED_BYTES = 64 << 20
_NO_BATCH = ("job.step() outside of a loop over job.batches(…): write `for batch in job.batches(loader):`, or "
             "`for _ in job.batches(range(steps)):` where the program makes its batches itself")


class CannotRecover(RuntimeError):
    """No further generation mends it."""


class Alone:
    """What join() returns where nothing is replaced: counts the steps."""

    def __init__(self):
        self.committed = 0
        self._is_in_batches = False
        self._step = _CountedStep(self)

    def epochs(self, epochs):
        return range(epochs) if isinstance(epochs, int) else epochs

    def batches(self, loader, per_step=None):
        self._is_in_batches = True
        try:
            yield from _batches(loader, per_step)
        finally:
            self._is_in_batches = False

    def step(self):
        return self._step


class _CountedStep:
    committed = True

    def __init__(self, job):
        self._job = job

    def __enter__(self):
        if not self._job._is_in_batches:
            raise RuntimeError(_NO_BATCH)
        return self

    def __exit__(self, kind, *_):
        self._job.committed += kind is None
        return False


def _batches(loader, per_step):
    return loader if per_step is None else _chunks(iter(loader), per_step)


def _chunks(batches, size):
    while chunk := list(itertools.islice(batches, size)):
        yield chunk


def join(model, optimizer, scheduler, scaler, sampler, unchanged, parts):
    """ddprun.join()."""
    groups = getattr(sys.modules.get("_ddprun_groups"), "current", None)
    if groups is None or "DDPRUN_REPLACES" not in os.environ:
        return Alone()
    link = RecoveryLink.of_process()
    if link is None:
        return Alone()
    given = [model, optimizer, scaler, sampler, *parts.values()]
    optimizer, scaler_of_wrapper = _unwrapped(optimizer)
    scaler = scaler if scaler is not None else scaler_of_wrapper
    schedulers = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler] if scheduler is not None else []
    why = in_place.why_not or _why_not(model, optimizer, schedulers, parts)
    why = why or groups.why_not(next(model.parameters()).device.type)
    given += [optimizer, scaler, *schedulers]
    job = Job(groups, link, model, optimizer, schedulers, scaler, sampler, parts, given, unchanged) if why is None else None
    if job is None or not job.begin():
        if why is not None:
            link.refuse(why)
        if groups.is_prepared:
            raise CannotRecover(why or job.refused)
        return Alone()
    return job


def _unwrapped(optimizer):
    """(the optimizer of PyTorch's in a framework's wrapper, which has its state and no more; the wrapper's GradScaler)"""
    scaler = None
    while isinstance(its := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        if optimizer.state is not its.state or optimizer.param_groups is not its.param_groups:
            break
        optimizer, scaler = its, getattr(optimizer, "scaler", None) or scaler
    return optimizer, scaler


def _why_not(ddp, optimizer, schedulers, parts):
    if type(ddp) is not DistributedDataParallel:
        return f"its model is no DistributedDataParallel but a {type(ddp).__name__}"
    if not isinstance(optimizer, torch.optim.Optimizer):
        return "join() was given no optimizer"
    if not hasattr(optimizer, "_optimizer_step_post_hooks"):  # it has not called the constructor of PyTorch's
        return f"its optimizer is a {type(optimizer).__name__}, a wrapper with a state of its own"
    if hasattr(optimizer, "consolidate_state_dict"):
        return f"its optimizer is a {type(optimizer).__name__}, which keeps a part of its state on each rank"
    parameters = list(ddp.parameters())
    if len({each.device for each in parameters}) > 1 or parameters[0].device.type not in ("cpu", "cuda"):
        return "its model is neither on the CPU nor on one GPU"
    of_optimizer = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if any(each.requires_grad and id(each) not in of_optimizer for each in parameters):
        return "its optimizer has not all parameters that are trained, and join() takes one optimizer"
    if not schedulers and any("initial_lr" in group for group in optimizer.param_groups):
        return "a scheduler changes its optimizer's learning rate, and join() was given none"
    if getattr(ddp, "parameters_to_ignore", None):
        return "its DistributedDataParallel ignores parameters or buffers, which each rank then has its own of"
    if ddp._comm_hooks:
        return "its model has a communication hook, which may have a memory of its own"
    for name in ("static_graph", "mixed_precision", "_delay_all_reduce_params", "_use_python_reducer"):
        if getattr(ddp, name, None):
            return f"its DistributedDataParallel has {name.lstrip('_')}, with which this was not tried"
    if any(hasattr(each, "_in_backward_optimizers") for each in parameters):
        return "its optimizer steps inside of backward()"
    if threading.current_thread() is not threading.main_thread():
        return "it trains on another thread than the main one"
    for name, part in parts.items():
        if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
            return f"{name} has no state_dict() and load_state_dict()"
    return None


class _Resume:
    """Where a process that has taken a rank's place begins."""

    def __init__(self, position, before, of_processes, restore, is_in_step):
        self.epoch, self.loop, self.steps = position
        self.before = before  # generators, before the batches of the next step are loaded
        self.of_processes = of_processes  # of the loader, as they are then
        self.restore = restore
        self.is_in_step = is_in_step


class Job(in_place.types.StepPath if in_place.types is not None else object):
    """Has step(), and of what a step does all that is usual, from StepPath, which says when it calls the methods here."""

    def __init__(self, groups, link, ddp, optimizer, schedulers, scaler, sampler, parts, given, unchanged):
        self._groups, self._link, self._ddp, self._optimizer = groups, link, ddp, optimizer
        self._scaler, self._sampler = scaler, sampler
        device = next(ddp.parameters()).device
        self._own = OwnState(ddp.module, device if device.type == "cuda" else None, parts)
        self._parameters = tuple(ddp.parameters())
        self._versions = Versions(self._parameters)
        self._version_blocks = self._versions.blocks
        of_model = {id(each) for each in self._parameters}
        beside_model = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in of_model]
        self._shared = SharedState((*self._parameters, *beside_model), optimizer, schedulers, scaler)
        self._all_given, self._unchanged = given, unchanged
        self._generators = []  # generators of random numbers that the program has when its first steps begin
        self._is_in_batches = False
        self._equal_values = []  # names of plain values of the program that all ranks had the same of at their second step
        self._values_agreed = self._replicas_agreed = True  # since the last generation
        self._compared = 0  # pieces of the replicas
        self._schedulers, self._ddp_attributes = schedulers, vars(ddp)
        self._trained = [each.requires_grad for each in self._parameters]
        self._counted_step = _CountedStep(self)
        self.refused = None
        self._is_offered = False
        self._wanted_at, self._committed_at = link.wanted_at, link.committed_at
        self._noted_at, self._given_at = self._own.noted_at, self._own.given_at
        self._lacks_state = False  # of model and optimizer: it has taken a place
        self._is_torn = False  # its own is half another rank's
        self._mirror = None
        self._resume = None
        self._layout = None  # of DDP's buckets, since the last generation
        self._first_gradients_of = None  # the step in which it has looked for them last
        self._settings = b""  # as they were when the last step was committed
        self._has_epochs = False
        self._of_processes = {}
        self._begins = 0  # loops over batches that this rank has begun
        self._calls = in_place.gloo_calls()

    # ---- join

    def begin(self):
        """False: it was refused."""
        groups, link = self._groups, self._link
        why = self._own.buffers.why_not()
        if why is not None:
            return self._refuse(why)
        groups.remember()
        link.hold_death_lock()
        self._ddp.register_forward_hook(self._after_forward)
        self._optimizer.register_step_post_hook(self._after_step)
        groups.on_refused = self._refuse
        if groups.is_prepared:
            self._take_place()
            return True
        versions = groups.ask_all("join", torch.__version__)
        if len(set(versions)) > 1:
            return self._refuse(f"its ranks have different versions of torch ({', '.join(sorted(set(versions)))})")
        try:
            self._settings = self._shared.settings()
            self._own.pickled_parts()
        except Exception as error:  # of the program's classes
            return self._refuse(f"the state of what join() was given cannot be pickled ({type(error).__name__}: {error})")
        self._calls_at_commit = self._calls.value
        self._take_mirror(mirror.Mirror.make(_PLACES, max(2 * self._own.size, _MIRROR_BYTES_MIN)))
        return True

    def _take_mirror(self, its):
        self._mirror_at = 0 if its is None else its.address
        self._mirror = its

    def _take_place(self):
        _warm_up(next(self._ddp.parameters()).device)
        descriptor = self._link.await_place()
        os.environ.pop("DDPRUN_PREPARED")
        self._groups.take_place()
        self._take_mirror(mirror.Mirror.open(descriptor))
        if self._mirror is None:
            raise CannotRecover("what was handed over is not the mirror of a worker")
        self._lacks_state = True
        self._listen()
        self._recover()
        self._link.offer(self._mirror.descriptor)
        self._is_offered = True

    def _listen(self):
        self._link.listen(self._groups.shut)

    def _refuse(self, why):
        if not self._is_off:
            self.refused, self._is_off = why, True
            self._link.refuse(why)
        return False

    def _withdraw(self):
        if not self._is_off:
            self._is_off = True
            if self._is_offered:
                self._link.withdraw()

    # ---- the loop

    def epochs(self, epochs):
        """Yields them, of a number all below it; a process that takes a rank's place begins with the one that this was in."""
        self._has_epochs = True
        for index, epoch in enumerate(range(epochs) if isinstance(epochs, int) else epochs):
            if self._resume is not None and index < self._resume.epoch:
                continue
            self._epoch, self._loop = index, 0
            yield epoch
        self._withdraw()

    def batches(self, loader, per_step=None):
        """Yields its batches, or lists of `per_step` of them, until a step is committed with each."""
        self._loader, self._is_in_batches = loader, True
        try:
            yield from self._batches_of(loader, per_step)
        finally:
            self._is_in_batches = False

    def _batches_of(self, loader, per_step):
        if not self._is_off:
            why = loading.why_not(loader)
            if why is None and self._loop > 0 and not self._has_epochs:
                why = "its loop over batches begins again: the loop around it must be over job.epochs(…)"
            if why is not None:
                self._refuse(why)
        if self._is_off:
            yield from _batches(loader, per_step)
            return
        resume = self._resume
        if resume is not None and self._loop < resume.loop:
            self._loop += 1
            return
        self._steps = resume.steps if resume is not None else 0
        batches = self._begin_loop(loader, resume, per_step or 1)
        self._states = batches.states
        batches = iter(batches)
        try:
            yield from self._given(batches if per_step is None else _chunks(batches, per_step))
        except GeneratorExit:
            if not self._is_off and self._is_offered:
                self._refuse("its loop over batches was left by break, return or an exception")
            raise
        self._loop += 1
        if not self._has_epochs:
            self._withdraw()

    def _refuse_batch(self):
        self._refuse("a batch cannot be given again: the step writes into it")
        raise CannotRecover(self.refused)

    def _refuse_steps(self, number):
        self._refuse(f"its loop makes {number} steps with one batch: one job.step() is for each")

    def _note_given(self):
        self._given_state, self._has_noted_given = self._own.generators.now(), False

    def _restore_given(self):
        generators = self._own.generators
        generators.restore(self._own.noted_given() if self._has_noted_given else self._given_state)

    def _note(self):
        self._own.note_generators()
        self._has_noted = False  # as usual
        self._take_layout()

    def _take_layout(self):
        own = self._own
        if own.buffers.trouble is not None:
            self._refuse(own.buffers.trouble)
        self._generators_seen, self._buffers_seen = own.generators_seen(), own.buffers.seen
        self._generator_blocks, self._entry_blocks, self._effect_blocks = (
            own.generator_blocks, own.entry_blocks, own.effect_blocks)

    def _begin_loop(self, loader, resume, batches_per_step):
        """The loader's iterator, with what it drew its order from noted, or put back."""
        number, generators = self._epoch << 20 | self._loop, self._own.generators
        if resume is None:
            self._begins += 1
            states = [generator.get_state() for generator in loading.generators_of(loader)]
            text = pickle.dumps((generators.now(), states, self._begins, _state_of_sampler(self._sampler)))
            place, blocks = 4 + self._begins % 2, in_place.types.Blocks([])
            if not self._mirror.write(place, number, text, blocks):
                self._write_larger(place, number, text, blocks)
            return loading.Batches(loader)
        record = self._mirror.read(4, number) or self._mirror.read(5, number)
        if record is None:
            raise CannotRecover("the worker whose place this is has not noted how its loop over batches began")
        at_begin, of_loader, self._begins, of_sampler = pickle.loads(record[0])
        generators.restore(at_begin)
        for generator, state in zip(loading.generators_of(loader), of_loader):
            generator.set_state(state)
        _set_sampler(self._sampler, of_sampler)
        batches = loading.Batches(loader, resume.steps * batches_per_step, resume.of_processes)
        if resume.is_in_step:
            generators.restore(resume.before)
        else:
            resume.restore()
            self._resume = None
        return batches

    # ---- a step

    def _write_larger(self, place, number, text, blocks):
        larger = mirror.Mirror.make(_PLACES, 2 * (self._own.size + len(text)))
        larger.copy_from(self._mirror)
        self._take_mirror(larger)
        if self._is_offered:
            self._link.send_mirror(larger.descriptor)
        larger.write(place, number, text, blocks)

    def _before_entry(self):
        """Its step is not as usual: it is not offered yet, or begins a generation."""
        if self._between > 0 and self.committed == 0:
            self._refuse("its ranks call each other between join() and the first step")
            return
        frame = sys._getframe(1)
        if self._generation == 0 and self.committed < _OFFERS_AFTER and self._refuse_what_is_not_given(frame):
            return
        if self._link.wanted > self._generation:
            self._recover()
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume.restore()
        if self._generation == 0 and self.committed == 1:
            self._equal_values = agreement.equal_values(self._values_of_all_at_second_step(frame))
        while not self._values_agreed:
            try:
                self._agree_on_values(frame)
            except Exception as error:
                if isinstance(error, CannotRecover) or not self._is_lost(error):
                    raise
                if not self._link.await_news(self._generation, _NEWS_LIMIT_S):
                    self._withdraw()
                    raise
                self._recover()
        if self._is_due():
            self._listen()

    def _refuse_what_is_not_given(self, frame):
        """Before the first two steps; the state of an optimizer is there in the second."""
        if not self._is_in_batches:
            raise RuntimeError(_NO_BATCH)
        frames = agreement.frames_of(frame)
        why = agreement.not_given(frames, [*self._all_given, self._loader], self._unchanged, self._generators)
        name = agreement.tensors_in_attributes(self._optimizer)
        if why is None and name is not None:
            why = f"its optimizer has tensors in an attribute ({type(self._optimizer).__name__}.{name}), which its state_dict() lacks"
        if why is None and self._shared.has_sparse():
            why = "its optimizer's state has sparse tensors (as momentum of an Embedding(sparse=True) is)"
        if why is not None:
            self._refuse(why)
        return why is not None

    def _values(self, frame):
        return agreement.plain_values(agreement.frames_of(frame), self._optimizer, self._ddp.module)

    def _values_of_all_at_second_step(self, frame):
        word = base64.b64encode(zlib.compress(json.dumps(self._values(frame)).encode())).decode()
        return [json.loads(zlib.decompress(base64.b64decode(each))) for each in self._groups.ask_all("second step", word)]

    def _agree_on_values(self, frame):
        """Before the first step of a generation: all ranks are at its entry."""
        of_ranks = _all_gather(self._values(frame))
        why = agreement.difference_of_values(self._equal_values, of_ranks, frame)
        if why is not None:
            self._end_for(why)
        self._values_agreed = True

    def _compare_replicas(self):
        """Before a step is committed. If a rank is lost meanwhile the step counts, and the next generation is compared."""
        pieces = self._shared.pieces(_COMPARED_BYTES, _COMPARED_STEPS_MAX)
        try:
            of_ranks = _all_gather(self._shared.sums(self._compared, pieces))
        except Exception as error:
            if not self._is_lost(error):
                raise
            return
        differing = agreement.difference_of_replicas(of_ranks)
        if differing is not None:
            name, rank, other = differing
            suspect = f"; a checkpoint of the last {self._compared} steps is suspect" if self._compared > 0 else ""
            self._end_for(f"{name} differs between rank {rank} and rank {other} after a replacement{suspect}")
        self._compared += 1
        self._replicas_agreed = self._compared == pieces

    def _end_for(self, why):
        """All ranks begin anew: going on would be wrong."""
        self._refuse(why)
        raise CannotRecover(why)

    def _is_lost(self, error):
        return _is_of_connection(error) or self._link.wanted > self._generation

    def _is_due(self):
        return not self._is_offered and self.committed >= _OFFERS_AFTER

    def _after_entry(self):
        if self._is_due():
            descriptor = self._mirror.descriptor
            if descriptor is None:
                self._refuse("it closes descriptors that ddprun has opened")
                return
            self._link.offer(descriptor)
            self._is_offered = True

    def _text_of_entry(self):
        settings = self._shared.settings()
        text = self._own.entry_text((self._of_processes, settings))
        self._settings_seen = self._shared.seen()
        self._take_layout()
        self._entry_text = text if not self._of_processes and self._own.is_text_the_same(with_noted=True) else None
        return text

    def _text_of_effect(self):
        text = self._own.effect_text(self._states)
        self._take_layout()
        self._effect_text = text if not self._states and self._own.is_text_the_same(with_noted=False) else None
        return text

    def _after_forward_of(self, output):
        """Of no tensor, or of one without a gradient."""
        if not torch.is_grad_enabled():
            return
        self._has_given = False
        for each in (output,) if isinstance(output, torch.Tensor) else torch.utils._pytree.tree_leaves(output):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                self._hook(each)

    def _before_first_gradients(self):
        if self.committed < _OFFERS_AFTER and self._first_gradients_of != self.committed:
            self._first_gradients_of = self.committed
            if any(each.grad is not None and not each.grad.is_sparse and each.grad.any() for each in self._parameters):
                self._refuse("it keeps gradients from one step to the next")

    def _check_step(self):
        """Before it is committed, if it is not as usual."""
        why = self._why_not_commit()
        if why is not None:
            self._refuse(why)
        if self._is_off and self._was_ended:
            raise CannotRecover(self.refused)
        if not self._is_off and not self._replicas_agreed:
            self._compare_replicas()

    def _why_not_commit(self):
        if self._was_ended:
            return "the error that ends a step in which a rank was lost was caught in the step"
        if not self._has_stepped and self._scaler is None:
            return "a step was left without its optimizer's step (break, return, continue?)"
        if self._calls.value == self._calls_at_entry and dist.get_world_size() > 1:
            return "its ranks do not call each other in a step"
        if self.committed < _OFFERS_AFTER and self._has_given:
            record = self._mirror.read(self.committed % 2 * 2 + 1, self.committed)
            if record is not None and not self._own.is_as_in(record):
                return "random numbers are drawn, or buffers or parts are changed, after its backward() has begun"
        return None

    def _after_commit(self):
        self._link.tell_commit(self._generation)
        if self._groups.old:
            self._groups.forget_old()
        self._is_usual = self._is_offered and not self._groups.old and self._resume is None and self._replicas_agreed

    def _note_settings(self):
        self._settings = self._shared.settings()
        self._settings_seen, self._entry_text = self._shared.seen(), None

    def _fail(self, error):
        """True: the group is made again, and the error forgotten."""
        self._is_in_step = self._was_ended = False
        if self._is_off or not self._is_offered:
            return False
        if not isinstance(error, Exception) or not self._is_lost(error):
            self._refuse(f"a step was left by an exception of the program ({type(error).__name__})")
            return False
        if not self._link.await_news(self._generation, _NEWS_LIMIT_S):
            self._withdraw()
            return False
        if self._has_stepped:
            self._refuse("a rank was lost in a call that follows the optimizer's step: make it after job.step()")
            return False
        if self._version_of_weights() != self._weights_at_entry:
            self._refuse("a rank was lost in a step that had changed the weights before (an optimizer with several backwards?)")
            return False
        if not self._recover(error):
            self._again = True
            _, (_, settings), _, restore = self._own.read(self._mirror.read(self.committed % 2 * 2, self.committed))
            if settings != self._shared.settings():
                self._set(settings)
            restore()
            self._shared.forget_unscaled()
        return True

    # ---- a generation

    def _recover(self, error=None):
        """Makes the groups again. True: this rank was given the step that it had not committed."""
        in_step = error is not None
        while True:
            wanted = self._link.wanted
            try:
                with self._groups.made_again(wanted, lambda: self._link.wanted > wanted) as making:
                    was_given_step = self._agree(making, in_step)
                break
            except CannotRecover:
                self._withdraw()
                raise
            except Exception as failure:
                # Another rank was lost meanwhile.
                if not self._link.await_news(wanted, _NEWS_LIMIT_S):
                    self._withdraw()
                    raise error or failure
        self._generation, self._is_usual = wanted, False
        self._values_agreed, self._replicas_agreed, self._compared = False, False, 0
        self._link.committed(self.committed)
        self._link.regrouped(wanted)
        return was_given_step

    def _agree(self, making, in_step):
        lacks = self._lacks_state
        has_state = not lacks and not self._is_torn
        words = making.ask_all(json.dumps([torch.__version__, has_state, self.committed, in_step, self._between]))
        told = [json.loads(word) for word in words]
        versions = {each.pop(0) for each in told}
        if len(versions) > 1:
            raise CannotRecover(f"a rank has another version of torch ({', '.join(sorted(versions))})")
        top = max(each[:3] for each in told)
        source = [each[:3] for each in told].index(top)
        any_has_state, committed, _ = top
        if not any_has_state:
            raise CannotRecover("no rank is left that has the state of the training")
        is_behind = not lacks and self.committed < committed
        if is_behind and not in_step:
            raise CannotRecover("this rank is behind the others by a step that waits for none")
        if source == self._groups.rank:
            making.tell(self._description(in_step))
        group = making.group()
        if [each.requires_grad for each in self._parameters] != self._trained:
            raise CannotRecover("which parameters are trained has changed since join()")
        self._layout, have_gradients, settings, shape, gives_buffers, modes, self._equal_values = pickle.loads(making.told())
        self._is_torn = self._is_torn or is_behind
        needs = lacks or self._is_torn
        if needs:
            if not self._shared.has_groups_of(settings):
                raise CannotRecover("parameter groups were added to the optimizer after join()")
            self._shared.take_shape(shape)
        self._shared.give(group, source, [rank for rank, each in enumerate(told) if not each[0] or each[1] < committed])
        if needs:
            self._settings = settings
            self._set(settings)
        make_reducer_again(self._ddp, group, self._layout, have_gradients)
        # As the last step left it: a step that is made again may have been left between two backwards of which one gives nothing.
        self._ddp.require_forward_param_sync = gives_buffers
        self._calls_at_commit = self._calls.value
        if lacks:
            self.committed = committed
            between = max(each[3] for each in told if each[:2] == top[:2])
            self._resume = self._where_to_begin(committed, between, modes)
        elif is_behind:
            self.committed = committed
        self._lacks_state = self._is_torn = False
        return is_behind

    def _set(self, settings):
        self._settings_seen = None
        self._shared.set(settings)

    def _description(self, in_step):
        """Pickled: buckets, which parameters have gradients, settings, the form of the optimizer's state, whether the next
        forward gives the buffers, which modules train, names of values that all ranks had the same of."""
        have_gradients = [each.grad is not None for each in self._parameters]
        gives_buffers = self._gives_buffers if in_step else self._ddp.require_forward_param_sync
        modes = [each.training for each in self._ddp.modules()]
        return pickle.dumps((layout_of(self._ddp) or self._layout, have_gradients, self._settings, self._shared.shape(),
                             gives_buffers, modes, self._equal_values))

    def _where_to_begin(self, committed, calls_between, modes):
        def all_of(settings, restore):
            """After what the program does on its way there: it may move a scheduler, or put modules into a mode."""
            def restore_all():
                self._set(settings)
                for module, trains in zip(self._ddp.modules(), modes):
                    module.training = trains
                restore()
            return restore_all

        own, record = self._own, self._mirror.read(committed % 2 * 2, committed)
        if record is not None:
            position, (of_processes, settings), before, restore = own.read(record)
            return _Resume(position, before, of_processes, all_of(settings, restore), is_in_step=True)
        record = self._mirror.read((committed - 1) % 2 * 2 + 1, committed - 1)
        if record is None:
            raise CannotRecover(f"the worker whose place this is has left no whole state of step {committed}")
        if calls_between > 0:
            raise CannotRecover("a rank was lost between two steps, between which the ranks call each other")
        position, of_processes, _, restore = own.read(record)
        return _Resume(position, None, of_processes, all_of(self._settings, restore), is_in_step=False)


def _all_gather(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _is_of_connection(error):
    return isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "gloo" in str(error)


def _state_of_sampler(sampler):
    if sampler is None:
        return None
    return sampler.state_dict() if hasattr(sampler, "state_dict") else getattr(sampler, "epoch", None)


def _set_sampler(sampler, state):
    if sampler is None or state is None:
        return
    if hasattr(sampler, "load_state_dict"):
        sampler.load_state_dict(state)
    else:
        sampler.set_epoch(state)


def _warm_up(device):
    """What a first step loads and makes, with a model that is nobody's."""
    model = torch.nn.Linear(4, 4, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    targets = torch.zeros(2, dtype=torch.long, device=device)
    torch.nn.functional.cross_entropy(model(torch.ones(2, 4, device=device)), targets).backward()
    optimizer.step()
