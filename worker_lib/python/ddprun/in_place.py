"""What the C++ library decides, keeps and says for a program whose ranks are replaced in place: the functions of the library that
ddprun's hooks load before PyTorch, which worker_lib/in_place/in_place.h documents. Used by ddprun.recovery; the main thread calls,
and one more thread listens."""

import _thread
import ctypes
import os
import select
import sys
import threading
from typing import NamedTuple

from ddprun import progress
from ddprun.groups import NONE_IS_LEFT

_library = ctypes.CDLL(None)
is_there = hasattr(_library, "ddprun_core_make") and hasattr(_library, "ddprun_gloo_failures")

HOLDS_NOTHING = 0
_LINK_SINCE = 5  # version of the link
_BROKEN = 0xFFFFFFFF


class _Action(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("numbers", ctypes.c_int64 * 3)]


class Place(ctypes.Structure):
    """Where a rank is (recovery_core/recovery_plan.h)."""
    _fields_ = [(name, ctypes.c_int64) for name in ("holds", "committed", "calls", "is_in_step")]

    def numbers(self):
        return self.holds, self.committed, self.calls, self.is_in_step


class _Functions:
    """The functions of the library, without `ddprun_`."""


_c = _Functions()


def _declare():
    text, size, number, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p
    integer, unsigned = ctypes.c_int, ctypes.c_uint32
    for name, result, *arguments in (
            ("why", text),
            ("why_untried", text),
            ("stream_sum", unsigned, pointer, size),
            ("gloo_calls", ctypes.POINTER(ctypes.c_uint64)),
            ("gloo_failures", ctypes.POINTER(ctypes.c_uint64)),
            ("plan", integer, ctypes.POINTER(Place), size, ctypes.POINTER(integer)),
            ("core_make", pointer, integer),
            ("core_state", text, pointer),
            ("core_place", integer, pointer, ctypes.POINTER(Place)),
            ("core_joined", integer, pointer, number),
            ("core_placed", integer, pointer),
            ("core_step_begins", integer, pointer),
            ("core_step_over", integer, pointer),
            ("core_regroup", integer, pointer, integer),
            ("core_met", integer, pointer, ctypes.POINTER(Place), size, integer),
            ("core_took", integer, pointer, number, integer, integer, integer),
            ("core_refused", integer, pointer, text),
            ("core_left", integer, pointer),
            ("core_actions", ctypes.POINTER(_Action), pointer),
            ("mirror_make", pointer, size, text, size),
            ("mirror_open", pointer, integer),
            ("mirror_descriptor", integer, pointer),
            ("mirror_set_up", size, pointer, pointer, size),
            ("mirror_write", integer, pointer, number, integer, text, size, pointer, size),
            ("mirror_read", number, pointer, number, integer, pointer, size),
            ("link_adopt", pointer, integer, pointer),
            ("link_hold_death_lock", None, pointer),
            ("link_send_mirror", None, pointer, integer),
            ("link_offer", None, pointer, integer),
            ("link_withdraw", None, pointer),
            ("link_refuse", None, pointer, text, integer),
            ("link_regrouped", None, pointer, unsigned),
            ("link_committed", None, pointer, number, unsigned),
            ("link_offer_to_take_place", None, pointer),
            ("link_note_gpu", None, pointer, ctypes.c_uint64, unsigned, ctypes.c_uint64, ctypes.c_uint64),
            ("link_place", unsigned, pointer, ctypes.POINTER(integer)),
            ("link_await_news", unsigned, pointer, unsigned)):
        function = getattr(_library, "ddprun_" + name)
        function.restype, function.argtypes = result, arguments
        setattr(_c, name, function)


if is_there:
    _declare()


def gloo_calls():
    """How many calls over Gloo this process has taken part in: has a `value`."""
    return _c.gloo_calls().contents


def gloo_failures():
    """How many connections over Gloo of this process have failed: has a `value`."""
    return _c.gloo_failures().contents


def stream_sum(address, size):
    """Two memories that differ in any 32 bits in a row have different sums."""
    return _c.stream_sum(address, size)


def why():
    return _c.why().decode()


def why_untried():
    """Why this architecture does not replace ranks in place; None: it does."""
    return _c.why_untried().decode() or None


class Action(NamedTuple):
    name: str
    numbers: tuple


def donor_and_takers(places):
    """(the rank that gives its state, the ranks that need it), by the places of all ranks."""
    needs = (ctypes.c_int * len(places))()
    donor = _c.plan((Place * len(places))(*places), len(places), needs)
    return donor, [rank for rank, its in enumerate(needs) if its]


class Core:
    """The decisions of this rank (recovery_core/recovery_core.h): each event returns the actions that follow, whose sentence is
    `why`. `state` is the name of the state."""

    def __init__(self, is_prepared):
        self._core = _c.core_make(is_prepared)
        self.state, self.why = "Prepared" if is_prepared else "SetUp", ""

    def _tell(self, count):
        text = _c.why().decode()
        if count < 0:
            raise AssertionError(text)
        self.state, self.why = _c.core_state(self._core).decode(), text
        actions = _c.core_actions(self._core)
        return [Action(actions[index].name.decode(), tuple(actions[index].numbers)) for index in range(count)]

    def place(self):
        place = Place()
        if not _c.core_place(self._core, place):
            raise AssertionError(f"a rank in state {self.state} has no place")
        return place

    def joined(self, committed):
        return self._tell(_c.core_joined(self._core, committed))

    def placed(self):
        return self._tell(_c.core_placed(self._core))

    def step_begins(self):
        return self._tell(_c.core_step_begins(self._core))

    def step_over(self):
        return self._tell(_c.core_step_over(self._core))

    def regroup(self, has_stepped):
        return self._tell(_c.core_regroup(self._core, has_stepped))

    def met(self, places, rank):
        return self._tell(_c.core_met(self._core, (Place * len(places))(*places), len(places), rank))

    def took(self, has_entry, has_last_entry, has_last_effect):
        return self._tell(_c.core_took(self._core, 0, has_entry, has_last_entry, has_last_effect))

    def refused(self, why):
        return self._tell(_c.core_refused(self._core, why.encode("utf-8", "replace")))

    def left(self):
        return self._tell(_c.core_left(self._core))


class Mirror:
    """What only this rank has, where the process that takes its place finds it (process/mirror.h)."""

    def __init__(self, mirror):
        if not mirror:
            raise OSError(why())
        self._mirror = mirror

    @classmethod
    def make(cls, state_bytes, set_up):
        return cls(_c.mirror_make(state_bytes, set_up, len(set_up)))

    @classmethod
    def open(cls, descriptor):
        return cls(_c.mirror_open(descriptor))

    @property
    def descriptor(self):
        """-1: the program has closed it."""
        return _c.mirror_descriptor(self._mirror)

    def set_up(self):
        size = _c.mirror_set_up(self._mirror, None, 0)
        text = ctypes.create_string_buffer(size + 1)
        _c.mirror_set_up(self._mirror, text, size)
        return text.raw[:size]

    def write(self, step, is_effect, head, data, size):
        """A state of bytes and of the memory at the address `data`. True: the mirror has another descriptor from here on."""
        done = _c.mirror_write(self._mirror, step, is_effect, head, len(head), data, size)
        if done < 0:
            raise OSError(why())
        return done > 0

    def has(self, step, is_effect):
        return _c.mirror_read(self._mirror, step, is_effect, None, 0) >= 0

    def read(self, step, is_effect):
        """The state; None: it was not written, or not whole."""
        size = _c.mirror_read(self._mirror, step, is_effect, None, 0)
        if size < 0:
            return None
        state = ctypes.create_string_buffer(size + 1)
        _c.mirror_read(self._mirror, step, is_effect, state, size)
        return state.raw[:size]


class Link:
    """The link to the agent (process/agent_link.h)."""

    @staticmethod
    def of_process():
        """None: there is no agent, or none that replaces workers."""
        link = progress.link_of_process()
        if not link or getattr(link, "version", 0) < _LINK_SINCE or link.socket is None:
            return None
        return Link(link)

    def __init__(self, link):
        self._socket = link.socket
        self._page = (ctypes.c_char * len(link.page)).from_buffer(link.page)  # keeps the page mapped
        self._link = _c.link_adopt(link.socket.fileno(), self._page)
        self._changed = threading.Condition()
        self.wanted = 0  # the newest generation that the agent has named
        self.is_broken = False  # and is not made anew

    # ---- to the agent

    def hold_death_lock(self):
        _c.link_hold_death_lock(self._link)

    def send_mirror(self, descriptor):
        _c.link_send_mirror(self._link, descriptor)

    def offer(self, descriptor):
        _c.link_offer(self._link, descriptor)

    def withdraw(self):
        _c.link_withdraw(self._link)

    def refuse(self, why, nor_later):
        """`nor_later`: nor is any worker of this job replaced in place from here on."""
        _c.link_refuse(self._link, why.encode("utf-8", "replace"), nor_later)

    def tell_difference(self, step, rank, other, what):
        """What is equal on all ranks is not; the training goes on."""
        progress.link_of_process().tell_difference(step, rank, other, what)

    def note_gpu(self, number, index, free_bytes, used_bytes):
        """The GPU of the model, as one `number` in all processes, and what this process takes there."""
        _c.link_note_gpu(self._link, number, index, free_bytes, used_bytes)

    def regrouped(self, generation):
        _c.link_regrouped(self._link, generation)

    def committed(self, steps, generation):
        _c.link_committed(self._link, steps, generation)

    # ---- from the agent

    def await_place(self):
        """In a prepared standby: returns when it is the worker of its rank, with the streams of the worker before; gives the
        descriptor of that worker's mirror."""
        passed = (ctypes.c_int * 3)()
        generation = _c.link_place(self._link, passed)
        if generation == 0:  # else it has waited before its set-up
            _c.link_offer_to_take_place(self._link)
        while generation == 0:
            select.select([self._socket], [], [])  # runs handlers of signals, too
            generation = _c.link_place(self._link, passed)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for descriptor, stream in zip((1, 2), passed):
            os.dup2(stream, descriptor)
            os.close(stream)
        self.wanted = generation
        return passed[2]

    def listen(self, break_calls):
        """Starts the thread; it calls `break_calls` with the generation before which all groups are broken."""
        _thread.start_new_thread(self._listen, (break_calls,))

    def _listen(self, break_calls):
        while not self.is_broken:
            news = _c.link_await_news(self._link, self.wanted)
            with self._changed:
                if news in (0, _BROKEN):
                    self.is_broken = True
                else:
                    self.wanted = news
                self._changed.notify_all()
            if news != 0:  # else the link is closed: by the program, whose group is as good as before, or with the agent's end
                break_calls(NONE_IS_LEFT if news == _BROKEN else news)

    def await_news(self, generation, seconds):
        """Whether the agent names a newer generation; it has so long, or says that there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_broken or self.wanted > generation, seconds)
            return not self.is_broken and self.wanted > generation
