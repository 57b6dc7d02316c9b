"""Workers that are replaced in place: one dies, the others stay (ddprun.recoverable; worker_lib/README.md, "Replaced in place,
in Python"). Imported by ddprun.recoverable() alone.

What this rank does is decided by recovery_core (worker_lib/recovery_core/recovery_core.h), which worker_lib's Recoverable asks,
too; this file asks it, and does what it says. A Python program replays no calls, so between two steps the core is told of none.

| state in the mirror | is written                                   | has                                               |
|---------------------|----------------------------------------------|---------------------------------------------------|
| entry of a step     | at its entry                                 | what only this rank has; random numbers are those |
|                     |                                              | of when the step's batch was given                |
| effect of a step    | when the model's gradients begin to be there | what only this rank has, as it is after the step  |

Both have how the loop over steps began, and where the step is in it.
"""

import base64
import dataclasses
import functools
import json
import os
import pickle
import struct
import sys
import threading
import time
import zlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddprun import agreement, in_place, torch_names, training
from ddprun.worker_state import is_sharded, layout_of, make_reducer_again, states_of, take_apart

# From the failure of a call until the agent says what becomes of the round.
_NEWS_LIMIT_S = 30
_LOOKS_FOR_CALLS_S = 0.002
_LOST_BETWEEN = "a rank was lost between two steps, between which the ranks call each other"
_REFUSED = "null"  # what a rank says that has refused, to ranks that ask all
_OTHERS_REFUSED = "another rank cannot be replaced in place"
# The buckets of DDP are those of all later steps from the second one on.
_OFFERS_AFTER = 2
_STATE_BYTES_MIN = 32768
_SIZE = struct.Struct("=Q")
# Without a replacement a part of the replicas is compared every so many steps.
_GUARDED_STEPS = 1000
# After a replacement replicas are compared within so many steps, with about so many bytes in each.
_COMPARED_STEPS_MAX = 8
_COMPARED_BYTES = 64 << 20


class CannotRecover(RuntimeError):
    """No further generation mends it."""


def recovery_of(models, optimizers, parts, per_rank, given, unchanged, place):
    """The recovery of a training whose ranks are replaced in place; None: they are not."""
    groups = getattr(sys.modules.get("_ddprun_groups"), "current", None)
    if groups is None or "DDPRUN_REPLACES" not in os.environ:
        return None
    if not in_place.is_there:
        why = (f"the library that ddprun brings cannot be loaded: {groups.library_error}" if groups.library_error else
               "its package ddprun is of another version than the ddprun that has started it")
        if groups.is_prepared:
            raise CannotRecover(why)
        print(f"ddprun: this program is not replaced in place: {why}", file=sys.stderr, flush=True)
        return None
    link = in_place.Link.of_process()
    if link is None:
        return None
    why = in_place.why_untried() or torch_names.missing() or _why_not(models, optimizers, parts) or why_not_pickled({**parts, **per_rank})
    cannot_meet = groups.why_not(next((each.device for each in models[0].parameters()), torch.device("cpu")))
    why = why or cannot_meet
    if why is not None:
        link.refuse(why, nor_later=False)
        if groups.is_prepared:
            raise CannotRecover(why)
        if cannot_meet is None:
            groups.say("recoverable", _REFUSED)  # the others wait for what this rank says
        return None
    recovery = Recovery(groups, link, models, optimizers, parts, per_rank, given, unchanged, place)
    recovery.begin()
    return None if recovery.is_off else recovery


def _why_not(models, optimizers, parts):
    for ddp in models:
        if isinstance(getattr(ddp, "_orig_mod", None), DistributedDataParallel):
            return "its model is torch.compile(DistributedDataParallel(…)): compile the model before it is wrapped"
        if any(map(is_sharded, ddp.parameters())):
            return ("its model is sharded (FSDP2): no other rank has what a dead one had. All ranks are restarted, with memory_every from "
                    "a snapshot in memory")
        if type(ddp) is not DistributedDataParallel:
            return f"its model is no DistributedDataParallel but a {type(ddp).__name__}"
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return f"its optimizer is no torch.optim.Optimizer but a {type(optimizer).__name__}"
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):  # it has not called the constructor of PyTorch's
            return f"its optimizer is a {type(optimizer).__name__}, a wrapper with a state of its own"
        if hasattr(optimizer, "consolidate_state_dict"):
            return f"its optimizer is a {type(optimizer).__name__}, which keeps a part of its state on each rank"
    parameters = [each for ddp in models for each in ddp.parameters()]
    if len({each.device for each in parameters}) != 1 or parameters[0].device.type not in ("cpu", "cuda"):
        return "its model is neither on the CPU nor on one GPU"
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    of_optimizers = {id(each) for group in groups for each in group["params"]}
    if any(each.requires_grad and id(each) not in of_optimizers for each in parameters):
        return "its optimizer has not all parameters that are trained: give all optimizers to recoverable()"
    has_schedulers = any(hasattr(part, "last_epoch") or "Scheduler" in type(part).__name__ for part in parts.values())
    if not has_schedulers and any("initial_lr" in group for group in groups):
        return "a scheduler changes its optimizer's learning rate, and recoverable() was given none: give it as scheduler=…"
    for ddp in models:
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
    return None


def why_not_pickled(parts):
    for name, part in parts.items():
        try:
            take_apart(part.state_dict())
        except Exception as error:  # the program's classes raise anything
            return f"the state of the part {name} cannot be pickled ({type(error).__name__}: {error})"
    return None


class Recovery:
    """The main thread calls. `place` is where the training is in its loops, and is kept by ddprun.training."""

    def __init__(self, groups, link, models, optimizers, parts, per_rank, given, unchanged, place):
        self._groups, self._link, self._models, self._optimizers = groups, link, models, optimizers
        self._modules = [each.module for each in models]
        self._parameters = [each for ddp in models for each in ddp.parameters()]
        self._own, self._shared = states_of(models, optimizers, parts, per_rank)
        self._all_given, self._unchanged = given, unchanged
        self._trained = [each.requires_grad for each in self._parameters]
        self._device = self._parameters[0].device
        self._calls, self._failures = groups.calls(in_place.gloo_calls()), in_place.gloo_failures()
        self._place = place
        self._loader = None  # the one that this loop goes through
        self._generators_seen = []  # generators of random numbers and iterators that the program has when its first steps begin
        self._core = in_place.Core(groups.is_prepared)
        self.resume = None  # where a process that has taken a place begins
        self.has_taken_place = False
        self._mirror = None
        self._began = b""  # how the loop over steps began that this rank is in
        self._first = place.committed  # step after recoverable()
        self._unsaid = [] if groups.is_prepared else ["recoverable", "second step"]  # about which the others will ask
        self._answers = False  # this rank has refused, and the others do not know
        self._was_wrong = False
        self._has_told_difference = False
        # ---- of this generation
        self._generation = 0
        self._failures_before = 0  # failed connections
        self._is_offered = False
        self._donor = None  # a _Donor, the last one
        self._layouts = [None] * len(models)  # the buckets that DDP has arranged
        self._equal_values, self._unequal_values = [], set()  # names of plain values of the program, as the ranks have had them
        self._equal_locals = {}  # the locals among the equal ones
        self._has_generators = False  # the program goes through its steps by generators of its own
        self._values_at_first = {}  # at the entry of the first step
        self._values_to_compare = 0  # times, since the last generation
        self._replicas_agreed = True  # since the last generation
        self._numbers_at_entry = {}  # the values of these locals at the first entry of this step
        self._compared = 0  # pieces of the replicas
        self._at_first_entry = None  # a function: what this rank is given once more
        # ---- of this step
        self._draws_behind = False  # random numbers, after the backward() of a step and before the next batch
        self._has_drawn = False  # likewise, in the last step
        self._left_behind = None  # a step behind whose backward() a process before this one has died
        self._may_keep_gradients = False  # the last step was committed without an optimizer's step
        self._are_gradients_finite = True  # in that step
        self._before = None  # generators before its batch was loaded
        self._at_effect = None  # generators when that was written; None: it was not, or the next batch was asked for since
        self._given = self._versions_given = None  # generators, parts and settings when it was given; versions of tensors
        self._of_processes = {}  # generators of the loader's processes before its batch was loaded
        self._states = {}  # the same now
        self._settings = b""  # as they were when the last step was committed
        self._settings_at_entry = b""
        self._is_in_block = self._has_stepped = self._has_given = self._is_in_backward = self._was_ended = False
        self._is_between = False  # the program runs, behind the block of a step
        self._border = threading.Lock()  # is held where a step ends, so that the listening thread knows on which side of it calls are
        self._stream = self._reduced = None  # over NCCL: the stream of this step, and an event in it
        self._calls_at_commit = self._calls_at_entry = self._calls_at_step = self._between = 0
        self._weights_at_entry = 0
        self._gives_buffers = [True] * len(models)
        self._gave_gradients = []  # models
        self._needs_copy = False  # the state at its entry, for a step that changes it before a call
        self._aside = None  # that copy
        self._inputs, self._inputs_before = [], None  # what the forwards of this step were given; and when it was made before

    @property
    def generators(self):
        return self._own.generators

    @property
    def is_off(self):
        """Refused or withdrawn."""
        return self._core.state == "Off"

    @property
    def are_replicas_compared(self):
        """False after a replacement, until all replicas were compared; equal on all ranks."""
        return self._replicas_agreed

    def _perform(self, actions):
        for name, numbers in actions:
            if name == "TakePlace":
                self._take_place()
            elif name == "NoteEntry":
                self._write_entry(numbers[0])
            elif name == "Restore":
                self._restore(*numbers)
            elif name == "TellRegrouped":
                self._place.committed = numbers[0]
                self._link.committed(numbers[0], 0)
                self._link.regrouped(self._generation)
            elif name == "TellCommitted":
                self._place.committed = numbers[0]
                self._link.committed(numbers[0], self._generation)
            elif name == "TellRefused":
                self._link.refuse(self._core.why, self._was_wrong)
            elif name == "Withdraw":
                self._link.withdraw()
            elif name == "Fail":
                raise CannotRecover(self._core.why)
            elif name != "ForgetCalls":
                raise AssertionError(f"recovery_core wants {name} of a Python program")

    # ---- recoverable()

    def begin(self):
        """Afterwards it is off if it was refused."""
        groups, link = self._groups, self._link
        why = self._own.buffers.why_not()
        if why is not None:
            return self.refuse(why)
        groups.remember(self._device)
        link.hold_death_lock()
        for ddp in self._models:
            ddp.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            ddp.register_forward_hook(self._after_forward)
        for optimizer in self._optimizers:
            optimizer.register_step_post_hook(self._after_step)
            if groups.is_nccl:
                optimizer.register_step_pre_hook(self._before_step)
        groups.on_refused = self.refuse
        if groups.is_prepared:
            return self._perform(self._core.joined(0))
        versions = groups.ask_all(self._unsaid.pop(0), torch.__version__)
        if _REFUSED in versions:
            return self.refuse(_OTHERS_REFUSED)
        if len(set(versions)) > 1:
            return self.refuse(f"its ranks have different versions of torch ({', '.join(sorted(set(versions)))})")
        try:
            self._settings = self._shared.settings()
        except Exception as error:  # the program's classes raise anything
            return self.refuse(f"an option of a parameter group cannot be pickled ({type(error).__name__}: {error})")
        if groups.is_nccl:
            group = groups.make_replaceable()
            for ddp in self._models:
                make_reducer_again(ddp, group, None, [each.grad is not None for each in ddp.parameters()])
            self._reduced = torch.cuda.Event()
        self._calls_at_commit, self._failures_before = self._calls.value, self._failures.value
        try:
            self._mirror = in_place.Mirror.make(self._own.buffers.size + _STATE_BYTES_MIN, self._own.buffers.set_up())
        except OSError as error:
            self.refuse(str(error))

    def _take_place(self):
        _warm_up(self._device)
        if self._groups.is_nccl:
            self._reduced = torch.cuda.Event()
        descriptor = self._link.await_place()
        os.environ.pop("DDPRUN_PREPARED")
        self._groups.take_place()
        if self._device.type == "cuda":
            try:
                self._groups.await_device()  # may have failed with the process before
            except self._groups.DeviceFailed as failure:
                self.refuse(str(failure))
                raise CannotRecover(str(failure)) from failure
        self._mirror = in_place.Mirror.open(descriptor)
        if self._mirror.set_up() != self._own.buffers.set_up():
            raise CannotRecover("the worker whose place this process takes has a model with other buffers")
        self.has_taken_place = True
        self._listen()
        self._perform(self._core.placed())
        self._recover()
        self._link.offer(self._mirror.descriptor)
        self._is_offered = True

    def _listen(self):
        self._link.listen(self._break_calls)

    def _break_calls(self, generation):
        """On the listening thread. Over Gloo a call that is ended raises an exception."""
        if not self._groups.is_nccl:
            self._groups.shut(generation)
        elif not self.is_off:  # else nothing looks at what an ended call has left
            threading.Thread(target=self._break_calls_of_steps, args=(generation,), daemon=True).start()

    def _break_calls_of_steps(self, generation):
        """Over NCCL a call that is ended leaves garbage, which must not become a result of the program: while it runs between two
        steps nothing is ended. If the ranks call each other there, all begin anew, and the call waits until this process is ended;
        else the next step finds the loss. NCCL tells of no call, so it is asked."""
        while True:
            with self._border:
                if not self._is_between:
                    return self._groups.shut(generation)
                has_called = self._calls.value > self._calls_at_commit
            if has_called:
                return self._link.refuse(_LOST_BETWEEN, nor_later=False)
            if self.is_off or self._link.wanted > generation:
                return
            time.sleep(_LOOKS_FOR_CALLS_S)

    def refuse(self, why, all_know=False):
        """`all_know`: all ranks do so now."""
        was_off = self.is_off
        self._perform(self._core.refused(why))
        if not was_off:
            self._answers = not self._unsaid and not all_know
            for about in self._unsaid:
                self._groups.say(about, _REFUSED)
            self._unsaid = []
        return False

    def answer(self, is_at_entry):
        """This rank has refused: where the others compare, which they do at steps that all ranks know, it says so, once."""
        compares = self._compares_values() if is_at_entry else self._compares_replicas()
        if self._answers and compares:
            self._answers = False
            self._all_gather(None)

    def _compares_values(self):
        return self._values_to_compare > 0 or self._agrees_on_values()

    def _compares_replicas(self):
        return not self._replicas_agreed or (self._place.committed + 1) % _GUARDED_STEPS == 0

    def withdraw(self):
        self._perform(self._core.left())

    def end_for(self, why):
        """All ranks begin anew, and none is replaced in place any more: going on would be wrong."""
        self._was_wrong = True
        self.refuse(why)
        raise CannotRecover(why)

    def exit_for(self, why):
        """Likewise, where an exception would be lost."""
        self._was_wrong = True
        self.refuse(why)
        training.end_process(why)

    def started_at(self):
        """The training goes on from a checkpoint."""
        self._first = self._place.committed
        self._settings = self._shared.settings()

    # ---- for a loop over steps

    def begin_loop(self, loader, batches, began):
        """The batches' iterator, with how the loop began noted."""
        self._loader, self._states, self._began = loader, batches.states, began
        return batches

    def note_before_batch(self):
        self._before, self._of_processes = self._own.generators.now(), dict(self._states)
        if self._at_effect is not None and self._place.steps > 0 and not self._own.generators.are_equal(self._at_effect, self._before):
            # An evaluation, whose loader draws a seed. The effect of the last step is what it is by now. It is not written where nothing was
            # drawn: while it is written a rank that dies has no whole state.
            self._draws_behind = self._has_drawn = True
            if self._left_behind is not None:
                self.end_for(f"random numbers are drawn behind the block of a step, or after its backward(), and rank {self._groups.rank} was "
                             f"lost there in step {self._left_behind}: some may be missing, and checkpoints of the steps since are suspect")
            self._write_effect(self._place.committed - 1, self._place.steps, self._before, is_settled=True)
        self._at_effect = None

    def note_given(self):
        own, shared = self._own, self._shared
        self._given = own.generators.now(), own.pickled_parts(), shared.settings()
        self._versions_given = shared.version_of_weights(), own.buffers.versions()

    def restore_given(self):
        """A step is made again from here."""
        self._groups.show()
        generators, parts, settings = self._given
        if self._shared.settings() != settings:
            self._shared.set(settings)
        self._own.restore_parts(parts)
        self._own.generators.restore(generators)
        self._versions_given = self._shared.version_of_weights(), self._own.buffers.versions()

    # ---- a step

    def _write_own(self, step, is_effect, steps, of_processes, generators, before=None, parts_given=None, is_settled=False):
        """What only this rank has, as it is now, but for random numbers."""
        why = self._own.buffers.why_not()
        if why is not None:
            return self.refuse(why)
        epoch, loop, _ = self._place.in_loops()
        may_lack_draws = self._draws_behind and not is_settled
        more = (epoch, loop, steps), of_processes, parts_given, self._began, is_settled, may_lack_draws, self._left_behind
        text = self._own.text(more, before, generators)
        flat = self._own.buffers.flat()
        if self._mirror.write(step, is_effect, _SIZE.pack(len(text)) + text, flat.data_ptr(), flat.nbytes) and self._is_offered:
            self._link.send_mirror(self._mirror.descriptor)

    def _write_entry(self, step):
        before_batch, parts = self._before, self._given[1]
        self._write_own(step, False, self._place.steps, self._of_processes, self._given[0], before_batch, parts)

    def _write_effect(self, step, steps, generators, is_settled=False):
        """`is_settled`: also of what follows the step's block."""
        self._write_own(step, True, steps, self._states, generators, is_settled=is_settled)

    def _note_effect(self):
        self._at_effect = self._own.generators.now()
        self._write_effect(self._place.committed, self._place.steps + 1, self._at_effect)

    def _record(self, step, is_effect):
        """What _write_own() wrote, for OwnState; None: it was not written, or not whole."""
        state = self._mirror.read(step, is_effect)
        if state is None:
            return None
        [size] = _SIZE.unpack_from(state)
        return state[_SIZE.size:_SIZE.size + size], state[_SIZE.size + size:]

    def enter(self, frame, steps):
        """`steps` is the iterator that has given it, `frame` is the program's."""
        if self._core.state == "SetUp":
            self._perform(self._core.joined(self._place.committed))
        self._was_ended = False
        with self._border:
            self._is_between = False
        self._between = self._calls.value - self._calls_at_commit
        if self._between > 0 and self._groups.is_nccl and self._is_offered:
            torch.cuda.synchronize(self._device)  # what the ranks have called between two steps
            if self._is_lost():
                self.refuse(_LOST_BETWEEN)
                raise CannotRecover(_LOST_BETWEEN)
        if self._at_first_entry is None and (self._shared.version_of_weights(), self._own.buffers.versions()) != self._versions_given:
            return self.refuse("weights, buffers or a large part are changed between a batch and its step: change them in the block of "
                               "the step, or after it")
        if self._between > 0 and self._steps_made() == 0 and self._generation == 0:
            return self.refuse("its ranks call each other between recoverable() and the first step")
        if self._generation == 0 and self._steps_made() < _OFFERS_AFTER and self._refuse_what_is_not_given(frame, steps):
            return
        is_again = self._core.state == "InStep"
        if not is_again:
            self._give_once_more()  # this rank may give its state to others now
            if self._is_lost():
                self._recover()
            self._perform(self._core.step_begins())
        self._give_once_more()
        if self.is_off:
            return
        self._settings_at_entry = self._shared.settings()
        self._gives_buffers = [each.require_forward_param_sync for each in self._models]
        self._weights_at_entry = self._shared.version_of_weights()
        self._has_stepped = self._has_given = self._is_in_backward = False
        self._at_effect = None
        if self._inputs_before is None and self._equal_locals:
            self._numbers_at_entry = agreement.numbers_now(agreement.frames_of(frame), self._equal_locals)
        if not self._is_usual():
            self._agree_at_entry(frame, steps)
            if self.is_off:
                return
        # What has changed the state before a call of a step may do so again.
        self._aside = self._shared.copied() if self._needs_copy else None
        self._calls_at_entry = self._calls.value
        if self._groups.is_nccl:
            self._stream = torch.cuda.current_stream(self._device)
        self._inputs, self._gave_gradients = [], []
        self._is_in_block = True

    def _give_once_more(self):
        if self._at_first_entry is not None:
            restore, self._at_first_entry = self._at_first_entry, None
            restore()

    def _is_usual(self):
        return (self._is_offered and not self._groups.old and self.resume is None and self._replicas_agreed
                and self._values_to_compare == 0 and not self._agrees_on_values())

    def _steps_made(self):
        return self._place.committed - self._first

    def _agrees_on_values(self):
        """At the fourth step, the eighth, the sixteenth …: what the program has bound since then is compared from here on."""
        made = self._steps_made()
        return made > _OFFERS_AFTER and made & (made + 1) == 0

    def _is_due(self):
        return not self._is_offered and self._steps_made() >= _OFFERS_AFTER

    def _is_lost(self):
        return self._link.wanted > self._generation

    def skipped(self):
        """A step is skipped."""
        if self._core.state == "InStep":
            self.end_for(f"step {self._place.committed} is made again after a rank was lost, and is skipped this time")

    def _agree_at_entry(self, frame, steps):
        """Its step is not as usual: recovery is not offered yet, a generation begins, or the ranks agree on values."""
        if self._generation == 0 and self._steps_made() == 0:
            self._values_at_first = self._values(frame, steps)
        if self._generation == 0 and self._steps_made() == 1:
            self._agree_at_second_step(frame, steps)
            if self.is_off:
                return
        while self._compares_values():
            try:
                of_ranks = self._all_gather(self._values(frame, steps))
                if None in of_ranks:
                    return self.refuse(_OTHERS_REFUSED, all_know=True)
                if self._values_to_compare > 0:
                    self._compare_values(of_ranks, frame)
                if self._agrees_on_values():
                    self._note_equal_values(of_ranks)
                break
            except Exception as error:
                if isinstance(error, CannotRecover) or not self._is_of_loss(error):
                    raise
                if not self._link.await_news(self._generation, _NEWS_LIMIT_S):
                    self.withdraw()
                    raise
                generators = self._own.generators.now()
                self._recover()
                self._own.generators.restore(generators)  # the batch is not given once more, after which the program may have drawn
        if self._is_due():
            descriptor = self._mirror.descriptor
            if descriptor < 0:
                return self.refuse("it closes descriptors that ddprun has opened")
            self._listen()
            self._note_gpu()
            self._link.offer(descriptor)
            self._is_offered = True

    def _note_gpu(self):
        """Its standby would take as much."""
        if self._device.type != "cuda":
            return
        free, _ = torch.cuda.mem_get_info(self._device)
        number = zlib.crc32(str(torch.cuda.get_device_properties(self._device).uuid).encode())
        self._link.note_gpu(number or 1, self._device.index, free, torch.cuda.max_memory_reserved(self._device))

    def _refuse_what_is_not_given(self, frame, steps):
        """Before the first two steps; the state of an optimizer is there in the second."""
        why, of_generators = agreement.ways_around(steps)
        self._has_generators = len(of_generators) > 0
        why = why or agreement.generator_of_data(self._loader, self._all_given, self._unchanged) or agreement.not_given(
            [*of_generators, *agreement.frames_of(frame)], [*self._all_given, self._loader], self._unchanged, self._generators_seen)
        for optimizer in self._optimizers:
            name = agreement.tensors_in_attributes(optimizer)
            if why is None and name is not None:
                why = f"its optimizer has tensors in an attribute ({type(optimizer).__name__}.{name}), which its state_dict() lacks"
        why = why or self._shared.why_not()
        if why is not None:
            self.refuse(why)
        return why is not None

    def _values(self, frame, steps):
        of_generators = agreement.ways_around(steps)[1] if self._has_generators else []  # looking for them takes long
        found = agreement.plain_values([*of_generators, *agreement.frames_of(frame)], self._optimizers, self._modules, self._loader,
                                       self._unchanged)
        if self._inputs_before is not None:  # made again: how far the loops in the block had got is no difference
            found.update(agreement.told(self._numbers_at_entry))
        return found

    def _note_equal_values(self, of_ranks):
        self._equal_values, self._unequal_values = agreement.equal_values(of_ranks, self._equal_values, self._unequal_values)
        self._equal_locals = agreement.locals_among(self._equal_values)

    def _agree_at_second_step(self, frame, steps):
        """Which plain values are equal on all ranks, and that all parts are."""
        its = [self._values_at_first, self._values(frame, steps), [list(each) for each in self._shared.sums_of_parts().items()]]
        self._values_at_first = {}
        word = base64.b64encode(zlib.compress(json.dumps(its, default=repr).encode())).decode()
        words = self._groups.ask_all(self._unsaid.pop(0), word)
        if _REFUSED in words:
            return self.refuse(_OTHERS_REFUSED, all_know=True)
        of_ranks = [json.loads(zlib.decompress(base64.b64decode(each))) for each in words]
        at_first, now, parts = zip(*of_ranks)
        self._note_equal_values(now)
        why = agreement.tensor_of_each_rank(at_first, now, frame)
        differing = agreement.difference_of_replicas([dict(each) for each in parts])
        if differing is not None:
            name, rank, other = differing
            why = f"{name} differs between rank {rank} and rank {other}: what each rank has its own of is given as per_rank={{…}}"
        if why is not None:
            self.refuse(why, all_know=True)

    def _compare_values(self, of_ranks, frame):
        """Before the first step of a generation, where all ranks are at its entry, and before the next one: a counter in the block
        of a step counts a step that is made again twice."""
        why = agreement.difference_of_values(self._equal_values, of_ranks, frame)
        if why is not None:
            self.end_for(why)
        self._values_to_compare -= 1

    def _all_gather(self, value):
        """The value of each rank. Over NCCL bytes are looked at when no rank was lost meanwhile."""
        device = self._device if self._groups.is_nccl else torch.device("cpu")
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self._groups.world_size)]
        dist.all_gather(sizes, torch.tensor([data.numel()], device=device))
        self._check_results()
        sizes = [int(each) for each in sizes]
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
        padded[:data.numel()] = data
        gathered = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(gathered, padded)
        self._check_results()
        return [pickle.loads(its[:size].cpu().numpy().tobytes()) for its, size in zip(gathered, sizes)]

    def _check_results(self):
        if self._groups.is_nccl:
            torch.cuda.synchronize(self._device)
            if self._is_lost():
                raise ConnectionError("a rank was lost")

    def _sums_of_ranks(self, piece, pieces):
        """For this piece of the replicas; None: a rank was lost meanwhile, and the step counts, or has refused."""
        try:
            of_ranks = self._all_gather(self._shared.sums(piece, pieces))
            if None not in of_ranks:
                return of_ranks
            self.refuse(_OTHERS_REFUSED, all_know=True)
            return None
        except Exception as error:
            if not self._is_of_loss(error):
                raise
            return None

    def _look_for_drift(self):
        """Replicas that differ without a replacement: the program does not keep them equal, or memory is damaged."""
        pieces = self._shared.pieces(_COMPARED_BYTES, sys.maxsize)
        of_ranks = self._sums_of_ranks(self._place.committed // _GUARDED_STEPS % pieces, pieces)
        differing = agreement.difference_of_replicas(of_ranks or [{}])
        if differing is None or self._has_told_difference:
            return
        self._has_told_difference = True
        name, rank, other = differing
        if self._groups.rank == rank:
            what = (f"{name} differs between rank {rank} and rank {other} in step {self._place.committed}, without a replacement: "
                    "checkpoints are suspect")
            print(f"ddprun: {what}", file=sys.stderr, flush=True)
            self._link.tell_difference(self._place.committed, rank, other, what)

    def _compare_replicas(self):
        """Before a step is committed. If a rank is lost meanwhile the next generation is compared."""
        pieces = self._shared.pieces(_COMPARED_BYTES, _COMPARED_STEPS_MAX)
        of_ranks = self._sums_of_ranks(self._compared, pieces)
        if of_ranks is None:
            return
        differing = agreement.difference_of_replicas(of_ranks)
        if differing is not None:
            name, rank, other = differing
            suspect = f"; a checkpoint of the last {self._compared} steps is suspect" if self._compared > 0 else ""
            self.end_for(f"{name} differs between rank {rank} and rank {other} after a replacement{suspect}")
        self._compared += 1
        self._replicas_agreed = self._compared == pieces

    # ---- hooks in a step

    def _before_forward(self, ddp, arguments, options):
        if not self._is_in_block or self.is_off or not torch.is_grad_enabled():
            return
        if self._groups.is_nccl and self._steps_made() < _OFFERS_AFTER and torch.cuda.is_current_stream_capturing():
            self.refuse("its step is captured in a CUDA graph, whose calls cannot be ended")
            return
        number = len(self._inputs)
        self._inputs.append(agreement.Inputs((arguments, options)))
        if self._inputs_before is not None and number < len(self._inputs_before) and not self._inputs[number].are_equal_to(
                self._inputs_before[number]):
            self.end_for(f"the inputs of forward {number} differ when step {self._place.committed} is made again: they depend on "
                         "something that recoverable() was not given")

    def _after_forward(self, ddp, arguments, output):
        if not self._is_in_block or self.is_off or not torch.is_grad_enabled():
            return
        self._has_given = False
        for each in (output,) if isinstance(output, torch.Tensor) else torch.utils._pytree.tree_leaves(output):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                each.register_hook(functools.partial(self._before_gradients, ddp))

    def _before_gradients(self, ddp, _):
        """Before the first of them is given to the other ranks."""
        if self._has_given or not self._is_in_block or self.is_off:
            return
        if self._is_step_lost():
            self._was_ended = True
            raise _loss()  # without the step's rest
        if self._steps_made() < _OFFERS_AFTER or self._may_keep_gradients:
            if ddp not in self._gave_gradients:
                self._gave_gradients.append(ddp)
                if _have_gradients(ddp.parameters()):
                    why = "it keeps gradients from one step to the next"
                    if not self._replicas_agreed:  # a new process does not have them
                        self.end_for(why)
                    self.refuse(why)
                    return
            if not self._has_stepped and self._shared.version_of_weights() != self._weights_at_entry:
                self._copy_from_now_on("its step changes the weights before a backward()")
        self._has_given = self._is_in_backward = True
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: engine.queue_callback(self._after_backward))  # behind DDP's, which awaits its reductions
        self._note_effect()

    def _after_backward(self):
        """Only if it has come to its end without an error."""
        self._is_in_backward = False

    def _before_step(self, *_):
        """Over NCCL, before the optimizer's kernels are queued: the gradients are there, and were given by all ranks, since the
        agent's word comes before calls are ended."""
        if not self._is_in_block or self.is_off and not self._is_lost():
            return
        if self._has_stepped and self._calls.value == self._calls_at_step:
            return
        self._reduced.record(torch.cuda.current_stream(self._device))
        self._reduced.synchronize()
        self._look_for_loss()
        if torch.cuda.current_stream(self._device) != self._stream:
            self.refuse("its optimizer steps on another stream than that of the step")
            self._look_for_loss()

    def _look_for_loss(self):
        """Over NCCL, where what the step has called is awaited, before it is used."""
        if not self._is_lost():
            return
        self._was_ended = True
        if not self._is_step_lost() or self.is_off:
            why = "a rank was lost in a step in which the ranks call each other after an optimizer's step"
            self.refuse(why)
            raise CannotRecover(why)
        raise _loss()

    def _is_step_lost(self):
        """What this step has done so far does not count: a rank was lost before the last change of the state."""
        return self._is_lost() and (not self._has_stepped or self._aside is not None)

    def _after_step(self, *_):
        if not self._is_in_block or self.is_off:
            return
        self._note_calls_after_step()
        self._has_stepped, self._calls_at_step = True, self._calls.value

    def _note_calls_after_step(self):
        if self._has_stepped and self._calls.value != self._calls_at_step:
            self._copy_from_now_on("the ranks call each other after an optimizer's step within one step")

    def _copy_from_now_on(self, because):
        if self._needs_copy:
            return
        self._needs_copy = True
        if self._groups.rank == 0:
            size = sum(each.nbytes for each in self._shared.tensors())
            print(f"ddprun: {because}: the state at its entry is copied in each step from here on ({size / 2**20:.1f} MiB)",
                  file=sys.stderr, flush=True)

    # ---- the end of a step

    def check_step(self):
        """Before it is committed. Gives the error of a step that does not count, since a rank was lost in it."""
        if not self._is_in_block and not self._was_ended:
            return None
        self._note_calls_after_step()
        if self._groups.is_nccl and self._has_stepped and self._calls.value != self._calls_at_step and not self._was_ended:
            torch.cuda.synchronize(self._device)
            try:
                self._look_for_loss()
            except ConnectionError as error:
                return error
        if self._is_step_lost() and not self._was_ended:
            return _loss()  # which the program has not seen: a GradScaler skips the optimizer's step for garbage
        why = self._why_not_commit()
        if why is not None:
            self.refuse(why)
            if self._was_ended or self._is_in_backward and self._failures.value != self._failures_before:
                raise CannotRecover(why)  # what the optimizer has used is not the sum of all ranks
        elif not self._replicas_agreed:
            self._compare_replicas()
        elif self._compares_replicas():
            self._look_for_drift()
        return None

    def _why_not_commit(self):
        if self._was_ended:
            return "the error that ends a step in which a rank was lost was caught in the step"
        if self._is_in_backward:
            return "an error of backward() was caught in the step"
        if self._calls.value == self._calls_at_entry and dist.get_world_size() > 1:
            return "its ranks do not call each other in a step: a batch that is not trained on is passed over by step.skip()"
        if self._at_effect is None:  # no backward() in it
            self._note_effect()
        if self._steps_made() < _OFFERS_AFTER:
            record = self._record(self._place.committed, True)
            if record is not None and self._own.difference_from(record) is not None:
                return "buffers or parts are changed after its backward() has begun"
        return None

    def committed_step(self):
        self._aside, self._inputs, self._inputs_before = None, [], None
        self._may_keep_gradients, self._gave_gradients = not self._has_stepped, []
        self._are_gradients_finite = self._has_stepped or _are_finite_gradients(self._parameters)
        self._has_drawn = False
        self._perform(self._core.step_over())
        with self._border:
            self._is_in_block, self._is_between = False, True
            self._calls_at_commit = self._calls.value
        if self._groups.old:
            self._groups.forget_old()
        self._settings = self._shared.settings()

    def fail(self, error):
        """True: the group is made again, and the error forgotten."""
        was_in_block, self._is_in_block, self._was_ended = self._is_in_block, False, False
        self._at_effect = None
        if not was_in_block:
            return False
        if isinstance(error, torch.AcceleratorError) and not self._is_lost():
            return self.refuse(f"its GPU has failed ({str(error).splitlines()[0]})")
        if not isinstance(error, Exception) or not self._is_of_loss(error):
            return self.refuse(f"a step was left by an exception of the program ({type(error).__name__})")
        if isinstance(error, CannotRecover):
            return False
        if not self._is_offered or not self._link.await_news(self._generation, _NEWS_LIMIT_S):
            self.withdraw()
            return False
        if self._aside is not None:
            if not self._shared.put_back(self._aside):
                return self.refuse("a rank was lost in a step in which its optimizer or a part has got other tensors")
        elif not self._has_stepped and self._shared.version_of_weights() != self._weights_at_entry:
            return self.refuse("a rank was lost in a step that had changed the weights, or a large part, before (an optimizer with "
                               "several backwards?)")
        self._recover(error)
        if self._core.state == "InStep":
            self._inputs_before = self._inputs_before or self._inputs
            self._groups.hide()  # what follows the block must not call the others, which are at the entry
        else:
            self._has_drawn = False
        self._aside, self._inputs = None, []
        with self._border:
            self._is_between = True
        return True

    def _is_of_loss(self, error):
        return isinstance(error, dist.DistError) or self._failures.value != self._failures_before or self._is_lost()

    # ---- a generation

    def _recover(self, error=None):
        """Makes the groups again."""
        # Infinite gradients, for which a GradScaler leaves its step out, are seldom kept: if they are, the next backward sees it.
        may_keep = self._may_keep_gradients and not self._gave_gradients and _have_gradients(self._parameters)
        if may_keep and self._are_gradients_finite:
            why = "a rank was lost after a step without an optimizer's step, whose gradients may be kept for the next one"
            self.refuse(why)
            raise CannotRecover(why)
        while True:
            wanted = self._link.wanted
            self._perform(self._core.regroup(self._has_stepped and self._aside is None))
            try:
                with self._groups.made_again(wanted, lambda: self._link.wanted > wanted) as making:
                    resumed = self._agree(making)
                break
            except CannotRecover:
                self.withdraw()
                raise
            except self._groups.DeviceFailed as failure:
                self.refuse(str(failure))
                raise CannotRecover(str(failure)) from failure
            except Exception as failure:
                # Another rank was lost meanwhile.
                if not self._link.await_news(wanted, _NEWS_LIMIT_S):
                    self.withdraw()
                    raise error or failure
        if may_keep:  # what the next backward sees if the program keeps them; the new reducer has put zeros there
            for each in self._parameters:
                if each.grad is not None:
                    each.grad.fill_(float("nan"))
        self._generation, self._failures_before = wanted, self._failures.value
        self._values_to_compare, self._replicas_agreed, self._compared = 2, False, 0
        self._perform(resumed)

    def _agree(self, making):
        """What is to be done when the group is there, in which the ranks that needed it have the donor's state."""
        mine = self._core.place()
        words = making.ask_all(json.dumps([torch.__version__, [self._between, self._draws_behind, self._has_drawn], mine.numbers()]))
        told = [json.loads(word) for word in words]
        versions = {version for version, _, _ in told}
        if len(versions) > 1:
            raise CannotRecover(f"a rank has another version of torch ({', '.join(sorted(versions))})")
        places = [in_place.Place(*numbers) for _, _, numbers in told]
        actions = self._core.met(places, self._groups.rank)
        if self._core.state != "Taking":
            self._perform(actions)  # there is no plan
        [(_, (source, needs, _))] = actions
        _, ranks = in_place.donor_and_takers(places)
        is_in_step = places[source].is_in_step != 0
        if source == self._groups.rank:
            making.tell(pickle.dumps(self._as_donor(is_in_step)))
        group = making.group()
        if [each.requires_grad for each in self._parameters] != self._trained:
            raise CannotRecover("which parameters are trained has changed since recoverable()")
        donor = self._donor = pickle.loads(making.told())
        self._layouts, self._needs_copy = donor.layouts, donor.needs_copy
        self._first, self._has_generators = donor.first, donor.has_generators
        self._equal_values, self._unequal_values = donor.equal_values, donor.unequal_values
        self._equal_locals = agreement.locals_among(self._equal_values)
        if needs:
            if not self._shared.has_groups_of(donor.settings):
                raise CannotRecover("parameter groups were added to the optimizer after recoverable()")
            self._shared.take_shape(donor.shape)
        if self._groups.is_nccl:
            self._shared.broadcast(group, source, ranks, self._device, making.check_results)
        else:
            self._shared.give(group, source, ranks)
        if needs:
            self._settings = donor.settings
            self._shared.set(donor.settings)
        at = 0
        for ddp, layout, gives in zip(self._models, donor.layouts, donor.gives_buffers):
            count = len(list(ddp.parameters()))
            make_reducer_again(ddp, group, layout, donor.have_gradients[at:at + count])
            at += count
            # As the last step left it: a step that is made again may have been left between two backwards of which one gives nothing.
            ddp.require_forward_param_sync = gives
        self._calls_at_commit = self._calls.value
        of_level_ranks = [between for (_, between, _), its in zip(told, places) if its.numbers()[:2] == places[source].numbers()[:2]]
        if mine.holds == in_place.HOLDS_NOTHING:
            return self._took_place(places[source].committed, of_level_ranks)
        if mine.committed < places[source].committed:
            if any(has_drawn for _, _, has_drawn in of_level_ranks):
                raise CannotRecover("a rank was lost in a step that the others have committed, and random numbers are drawn after its "
                                    "backward()")
            self._at_first_entry = self._take_donors_entry  # an older one is of the state that this rank had before
        return self._core.took(False, False, False)

    def _took_place(self, committed, of_level_ranks):
        """`of_level_ranks`: what each rank that is as far as the donor has done between two steps: calls; draws, ever and now."""
        has = self._mirror.has
        has_entry, has_effect = has(committed, False), has(committed - 1, True)
        if not has_entry and has_effect:
            (*_, is_settled, may_lack_draws, _), _, _ = self._own.read(self._record(committed - 1, True))
            if any(calls > 0 for calls, *_ in of_level_ranks):
                raise CannotRecover(_LOST_BETWEEN)
            if may_lack_draws or not is_settled and any(draws for _, draws, _ in of_level_ranks):
                raise CannotRecover("a rank was lost between two steps, between which random numbers are drawn")
        return self._core.took(has_entry, has(committed - 1, False), has_effect)

    def _restore(self, step, is_effect, with_replicated):
        """What only this rank has, of this moment of a step."""
        state = self._core.state
        if state == "Entering" and step < self._place.committed:
            # The loops of a Python program may begin behind a step: that step is over at once.
            return self._perform(self._core.step_begins())
        if state == "Entering" or is_effect:
            self.resume = self._where_to_begin(step, is_effect)
        elif with_replicated:  # the step is made again; restore_given() follows
            self._put_back(self._record(step, is_effect))
            self._shared.forget_unscaled()
        # else: a newcomer at its first step, see _where_to_begin()

    def _put_back(self, record, with_generators=True):
        _, _, restore = self._own.read(record)
        restore(with_generators)
        differing = self._own.difference_from(record)
        if differing is not None:
            self.end_for(f"{differing} of rank {self._groups.rank} is not what it was, after it was put back: does load_state_dict() take "
                         "all that state_dict() gives?")

    def _take_donors_entry(self):
        """Schedulers and averages may be moved between two steps; the others are at an entry."""
        self._shared.set(self._donor.at_entry)
        self._shared.forget_given()

    def _as_donor(self, is_in_step):
        return _Donor(
            layouts=[layout_of(ddp) or layout for ddp, layout in zip(self._models, self._layouts)],
            have_gradients=[each.grad is not None for each in self._parameters],
            settings=self._settings,
            at_entry=self._settings_at_entry if is_in_step else self._shared.settings(),
            shape=self._shared.shape(),
            gives_buffers=self._gives_buffers if is_in_step else [each.require_forward_param_sync for each in self._models],
            modes=[each.training for ddp in self._models for each in ddp.modules()],
            equal_values=self._equal_values,
            unequal_values=self._unequal_values,
            first=self._first,
            has_generators=self._has_generators,
            place=self._place.in_loops(),
            needs_copy=self._needs_copy)

    def _where_to_begin(self, step, is_effect):
        """Where the loops of a newcomer begin. It makes up for what follows the last step of the process whose place it takes."""
        own, donor = self._own, self._donor
        record = self._record(step, is_effect)
        more, before, _ = own.read(record)
        place, of_processes, parts_given, began, is_settled, _, self._left_behind = more
        if is_effect and not is_settled and self._left_behind is None:
            self._left_behind = step
            print(f"ddprun: rank {self._groups.rank} was lost between step {step} and the next one: if it was in what follows the block, "
                  "the rest of that is not made there", file=sys.stderr, flush=True)

        def set_modes():
            for module, trains in zip((each for ddp in self._models for each in ddp.modules()), donor.modes):
                module.training = trains

        def restore():
            set_modes()
            self._put_back(record)
            if not is_effect:
                own.restore_parts(parts_given)

        def at_first_entry():
            self._take_donors_entry()
            if not is_effect:  # after what the program does on its way there
                set_modes()
                self._put_back(record, with_generators=False)

        self._at_first_entry = at_first_entry
        if is_effect and place[:2] != tuple(donor.place)[:2]:
            return training.Resume(place, None, None, {}, restore)
        return training.Resume(place, began, before, of_processes, restore)


@dataclasses.dataclass
class _Donor:
    """What the rank that gives its state tells the others beside the tensors."""
    layouts: list  # buckets by model
    have_gradients: list  # by parameter
    settings: bytes
    at_entry: bytes  # settings, where that rank is
    shape: tuple  # form of the tensors
    gives_buffers: list  # by model: whether the next forward gives the buffers
    modes: list  # by module: whether it trains
    equal_values: list  # names of values that all ranks had the same of
    unequal_values: set  # and of those that they had not
    first: int  # step after recoverable()
    has_generators: bool  # the program's own, around its steps
    place: tuple  # in the loops
    needs_copy: bool  # the state is copied at each entry


def _are_finite_gradients(parameters):
    found = [each.grad.coalesce().values() if each.grad.is_sparse else each.grad for each in parameters if each.grad is not None]
    return all(bool(torch.isfinite(each).all()) for each in found)


def _have_gradients(parameters):
    return any(each.grad is not None and not each.grad.is_sparse and each.grad.any() for each in parameters)


def _loss():
    return ConnectionError("a rank was lost in this step, which is made again")


def _warm_up(device):
    """What a first step loads and makes, with a model of its own."""
    model = torch.nn.Linear(4, 4, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    targets = torch.zeros(2, dtype=torch.long, device=device)
    torch.nn.functional.cross_entropy(model(torch.ones(2, 4, device=device)), targets).backward()
    optimizer.step()
