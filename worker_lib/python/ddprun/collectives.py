"""The record of collectives of programs that know nothing of ddprun: who is in which call over Gloo.

ddprun brings this file into every Python program that it starts (agent/python/sitecustomize.py), unless
DDPRUN_PYTHON_HOOKS=0. From the making of the first process group on, a thread
looks ten times a second at how many calls each group has made: Gloo counts them also where C++ makes them, as DDP's
reducer does. Only where none was made for a while it reads PyTorch's flight recorder, to know which calls are not over
and what they are. A call itself pays nothing; a wait for it a microsecond.

To find ranks that compute slowly (--slow-ranks) it is also read six times a minute, at the same moments on all ranks, for
when this process came to its last calls. That stops the process for 14 to 35 ms with the 2000 calls that it keeps; where it keeps
very many, it is not done.

The flight recorder has no messages between two ranks, no monitored_barrier and no making of groups: of these each call
is noted (_Noted), and written in the record if it lasts.

What is written is documented in agent/README.md, "The record of collectives". Nothing that goes wrong here reaches the
program: one line on stderr, and there is no record any more.
"""

import atexit
import functools
import json
import math
import os
import struct
import sys
import time
import weakref
from _thread import allocate_lock, get_ident, start_new_thread  # a thread that `threading` does not show to the program

_VARIABLE = "DDPRUN_LINK_RECORD_FD"
_BYTES = 69632
_VERSION = 1
_MAGIC = 0x4452435250444400
_HEADER = struct.Struct("=QIIi")  # magic, version, bytes, worker's pid
_CLAIMED_AT, _THREADS_AT = 64, 72  # threads: their number, and how many of them are inside of a wait
_GROUPS_AT, _GROUPS_MAX = 128, 48
_ENTRIES_AT, _ENTRIES_MAX = 4096, 1024
_GROUP = struct.Struct("=IQIIQ32s")  # from offset 4: peer and 1, hash of the name, members, rank, calls, name
# From offset 8: number, entered, left, elements, hash, group, operation, type, nothing, turn of the group, root.
_ENTRY = struct.Struct("=QqqQQHBBIIi")
_FIRST_TURN = 1 << 21  # those of a library in C++ that takes the record later are smaller
_NO_TYPE, _NO_ROOT, _UNKNOWN_PEER = 255, -1, 0xffffffff

_OPERATIONS = {"all_reduce": 1, "broadcast": 2, "reduce": 3, "all_gather": 4, "gather": 5, "scatter": 6,
               "reduce_scatter": 7, "all_to_all": 8, "barrier": 9}
_SEND_RECV, _INIT_PROCESS_GROUP, _NEW_GROUP, _MONITORED_BARRIER = 10, 11, 12, 13
_WITH_EQUAL_SIZES = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter")
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")  # methods of a process group
_ROOTS_KEPT = 512  # more than a look for arrivals reads
_TYPES = {name: number for number, name in enumerate(
    ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf", "ComplexFloat", "ComplexDouble",
     "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16"))}

_EVERY_S, _SELDOM_S = 0.1, 0.5  # between two looks; seldom where nothing has moved for
_IDLE_AFTER_S = 5
_STILL_S, _LONG_S = 0.5, 1.5  # without a call
_SHARE_OF_TIME = 0.03  # of one processor, for reading the flight recorder, at most
_ARRIVALS_EVERY = "DDPRUN_ARRIVALS_EVERY_MS"
_ARRIVALS_WITHIN_S = 0.6  # after the moment at which all ranks read
_ARRIVALS_TEXT_MAX = 2_500_000  # some 5,000 calls: more take too long, with Python's lock
_ARRIVALS_BYTES = 200_000  # the end of the flight recorder's text: some 400 calls
_ONE_WAITS = frozenset((_OPERATIONS["reduce"], _OPERATIONS["gather"]))  # their root, for all
_OPEN_MAX = 64
_RECENT_MAX = 8  # calls of a group that are over, of which more than the number is written
_CHANNELS_MAX = 16
_MADE_MAX = 8  # makings of groups that are over


def _hash_of(values, hash=0xcbf29ce484222325):
    for value in values:
        hash = ((hash ^ value) * 0x100000001b3) & 0xffffffffffffffff
    return hash


class Record:
    """The memory that the agent reads. One thread."""

    def __init__(self, descriptor, memory):
        self._descriptor = descriptor
        self._file = self._file_now()
        self._memory = memory
        self._words, self._halves = memoryview(memory).cast("Q"), memoryview(memory).cast("I")
        self._turn = _FIRST_TURN

    def is_ours(self):
        """Until a library of this process that writes the record itself (ddprun.torch) takes the descriptor, or the program
        closes it."""
        try:
            return self._file_now() == self._file and os.get_inheritable(self._descriptor)
        except OSError:
            return False

    def _file_now(self):
        about = os.fstat(self._descriptor)
        return about.st_dev, about.st_ino

    def add_group(self, name, rank, size, peer=None):
        """(place, turn); None: there is no place left. `peer`: the job's rank at the other end of a channel, -1 if not known."""
        for place in range(_GROUPS_MAX):
            at = (_GROUPS_AT + place * 64) // 4
            if self._halves[at] == 0:
                self._turn += 2
                self._halves[at] = self._turn - 1
                text = name.encode()
                _GROUP.pack_into(self._memory, at * 4 + 4, 0 if peer is None else peer + 1 if peer >= 0 else _UNKNOWN_PEER, _hash_of(text), size, rank, 0, text)
                self._halves[at] = self._turn
                return place, self._turn
        return None

    def remove_group(self, place):
        self._halves[(_GROUPS_AT + place * 64) // 4] = 0

    def set_calls(self, place, calls):
        self._words[(_GROUPS_AT + place * 64 + 24) // 8] = calls

    def set_threads(self, count, waiting):
        """How many there are that may make calls, and how many of these are inside of the wait for one."""
        at = _THREADS_AT // 4
        self._halves[at], self._halves[at + 1] = count, waiting

    def enter(self, group, number, call, entered_ns, left_ns=None):
        """What leave() takes. `group` is what add_group() has returned."""
        words = self._words
        claim = words[_CLAIMED_AT // 8]
        words[_CLAIMED_AT // 8] = claim + 1
        at = _ENTRIES_AT + claim % _ENTRIES_MAX * 64
        words[at // 8] = 2 * claim + 1
        _ENTRY.pack_into(self._memory, at + 8, number, entered_ns, -(claim + 1) if left_ns is None else left_ns,
                         call.elements, call.signature, group[0], call.operation, call.type, 0, group[1], call.root)
        words[at // 8] = 2 * claim + 2
        return claim

    def leave(self, claim, now_ns):
        at = (_ENTRIES_AT + claim % _ENTRIES_MAX * 64) // 8
        if self._words[at] == 2 * claim + 2:
            self._words[at + 3] = now_ns

    def is_old(self, claim):
        """Others will soon be written in its place."""
        return self._words[_CLAIMED_AT // 8] - claim > _ENTRIES_MAX // 2


def open_record():
    """None: there is none for this very process."""
    import mmap
    import stat
    text = os.environ.get(_VARIABLE, "")
    try:
        descriptor = int(text) if text.isdecimal() and len(text) < 10 else -1
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size != _BYTES or not os.get_inheritable(descriptor):
            return None
        header = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
        if header != (_MAGIC, _VERSION, _BYTES, os.getpid()):
            return None
        memory = mmap.mmap(descriptor, _BYTES)
        _keep_for_ever(memory)
        return Record(descriptor, memory)
    except (OSError, ValueError, struct.error):
        return None


# A mapping has a descriptor of its own, which its end would close, whatever has that number by then.
def _keep_for_ever(mapping):
    try:
        import ctypes
    except ImportError:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapping))


class _Call:
    """A call as the flight recorder has it; None: one of which only the number is known, and the operation perhaps."""

    def __init__(self, entry=None, root=_NO_ROOT, operation=0):
        self.operation, self.type, self.elements, self.signature, self.root = operation, _NO_TYPE, 0, 0, root
        if entry is None:
            return
        name = entry.get("profiling_name", "").rpartition(":")[2]
        self.operation = _OPERATIONS.get(name, 0)
        side = "output" if name == "scatter" else "input"
        types, sizes = entry.get(side + "_dtypes") or [], entry.get(side + "_sizes") or []
        if types:
            self.type = _TYPES.get(types[0], _NO_TYPE)
        self.elements = sum(map(math.prod, sizes))
        if name in _WITH_EQUAL_SIZES and len(sizes) == 1:
            self.signature = _hash_of(self.elements.to_bytes(8, "little"))


_UNKNOWN = _Call()


class _Roots:
    """Which roots the last calls that have one were made with: the flight recorder does not say. From C++ there are none
    but DDP's, which are equal."""

    def __init__(self, group_class):
        self._of = {}  # by group: a ring of (call by Gloo's count, root)
        for name in _WITH_ROOT:
            setattr(group_class, name, self._noting(getattr(group_class, name)))

    def _noting(self, make):
        rings = self._of

        def call(group, *args, **kwargs):
            work = make(group, *args, **kwargs)
            try:
                root = args[-1] if len(args) > 1 else kwargs.get("root", kwargs.get("opts"))
                op = group._get_sequence_number_for_group()
                ring = rings.get(group.group_name)
                if ring is None:
                    ring = rings[group.group_name] = [(0, _NO_ROOT)] * _ROOTS_KEPT
                ring[op % _ROOTS_KEPT] = op, getattr(root, "rootRank", root)
            except Exception:
                pass  # an older group, or no group at all
            return work

        call._torchdynamo_disable = True
        return functools.update_wrapper(call, make)

    def of(self, name, op):
        ring = self._of.get(name)
        found, root = ring[op % _ROOTS_KEPT] if ring else (0, None)
        return root if found == op and isinstance(root, int) else _NO_ROOT


class _Series:
    """Calls that Python notes one by one: those of a channel (sender, receiver and tag) or of an operation of a group."""

    def __init__(self, name, operation, rank, size, peer=None):
        self.name, self.call, self.rank, self.size, self.peer = name, _Call(operation=operation), rank, size, peer
        self.calls = 0
        self.open = {}  # by number: when it was entered
        self.place = None  # what is written of it
        self.claims = {}  # by number


class _Noted:
    """What the flight recorder does not have, and which threads wait. Called on the program's threads."""

    def __init__(self):
        self.series = {}  # by name
        self.waiting = {}  # by thread: how many waits it is inside of
        self.messages = {}  # by id of the work: (series, number), and what notices its end
        self.channels = 0
        world = os.environ.get("WORLD_SIZE", "")
        self._world = int(world) if world.isdecimal() else 0

    def begin(self, name, operation, rank, size, peer=None):
        series = self.series.get(name)
        if series is None:
            series = self.series[name] = _Series(name, operation, rank, size, peer)
        series.calls += 1
        series.open[series.calls] = time.monotonic_ns()
        return series, series.calls

    def end(self, noted):
        series, number = noted
        series.open.pop(number, None)

    def install(self, c10d):
        self._cpu = sys.modules["torch"].device("cpu")
        group_class, work_class = c10d.ProcessGroup, sys.modules["torch._C._distributed_c10d"].Work
        for name, is_sender in (("send", True), ("recv", False)):
            setattr(group_class, name, self._message(getattr(group_class, name), is_sender))
        group_class.monitored_barrier = self._blocking(group_class.monitored_barrier)
        work_class.wait = self._wait(work_class.wait)

    def _message(self, make, is_sender):
        def message(group, *args, **kwargs):
            try:
                _, peer, tag = args
                noted = self._begin_message(group, peer, tag, is_sender)
            except Exception:
                noted = None  # an older group, or no group at all
            try:
                work = make(group, *args, **kwargs)
            except BaseException:
                noted and self.end(noted)
                raise
            if noted:
                key = id(work)
                self.messages[key] = noted, weakref.ref(work, lambda _: self._end_message(key))
            return work

        message._torchdynamo_disable = True
        return functools.update_wrapper(message, make)

    def _begin_message(self, group, peer, tag, is_sender):
        if gloo_of(group, self._cpu) is None:
            return None
        rank, size = group.rank(), group.size()
        ends = (rank, peer) if is_sender else (peer, rank)
        suffix = f" {ends[0]}->{ends[1]}" + (f" tag {tag}" if tag else "")
        name = _shown_name(group.group_name)[:32 - len(suffix)] + suffix
        if name not in self.series:
            if self.channels == _CHANNELS_MAX:
                return None
            self.channels += 1
        return self.begin(name, _SEND_RECV, 0 if is_sender else 1, 2, peer if size == self._world else -1)

    def _end_message(self, key):
        noted, _ = self.messages.pop(key, (None, None))
        noted and self.end(noted)

    def _blocking(self, make):
        def call(group, *args, **kwargs):
            try:
                noted = self.begin(_shown_name(group.group_name)[:20] + " (monitored)", _MONITORED_BARRIER, group.rank(), group.size())
            except Exception:
                return make(group, *args, **kwargs)
            try:
                with self:
                    return make(group, *args, **kwargs)
            finally:
                self.end(noted)

        call._torchdynamo_disable = True
        return functools.update_wrapper(call, make)

    def _wait(self, make):
        messages, is_message = self.messages, {12, 13, 14}  # c10d::OpType: SEND, RECV, RECVANYSOURCE

        def wait(work, *args, **kwargs):
            key = id(work)
            try:
                is_recorded = key in messages or work._get_op_type() not in is_message
            except Exception:
                is_recorded = False
            if not is_recorded:
                return make(work, *args, **kwargs)
            try:
                with self:
                    return make(work, *args, **kwargs)
            finally:
                if key in messages:
                    self._end_message(key)

        wait._torchdynamo_disable = True
        return functools.update_wrapper(wait, make)

    def __enter__(self):
        thread = get_ident()
        self.waiting[thread] = self.waiting.get(thread, 0) + 1

    def __exit__(self, *error):
        thread = get_ident()
        count = self.waiting[thread] - 1
        if count:
            self.waiting[thread] = count
        else:
            del self.waiting[thread]


class _Group:
    """A process group of this process, with what is written of it."""

    def __init__(self, group, place):
        self.group = weakref.ref(group)
        self.place = place
        self.left_ns = 0  # the last call, as far as is known
        self.detailed = 0  # the last call that is over of which more than the number is written
        self.seen = 0  # calls by Gloo's own count, which has messages between two ranks, too
        self.messages = 0  # of these, as far as is known
        self.exchanges_messages = False  # all the time
        self.moved_at = time.monotonic()
        self.is_read, self.read_at = True, self.moved_at  # in the flight recorder, since the last call
        self.id = None  # there
        self.arrived = 0  # the last call of which it is written when this process came to it
        self.foreign = 0  # Gloo's calls that are none of these, as far as is known
        self.open = {}  # by Gloo's count: [claim, number, call, when it was entered]


class Sampler:
    """Looks at the groups of torch.distributed, and writes the record. One thread at a time."""

    def __init__(self, c10d, record, noted=None):
        self._c10d = c10d
        self._record = record
        self._noted, self._series, self._was_waiting = noted or _Noted(), {}, None
        self._roots = _Roots(c10d.ProcessGroup)
        self._cpu = sys.modules["torch"].device("cpu")
        self._flight_recorder = getattr(sys.modules["torch._C._distributed_c10d"], "_dump_fr_trace_json", None)
        self._groups = {}
        self._moved_at = time.monotonic()
        self._may_read_at = 0.0
        every = os.environ.get(_ARRIVALS_EVERY, "")
        self._arrivals_every_s = int(every) / 1000 if every.isdecimal() else 0
        self._arrivals_slot, self._arrivals_at = 0, 0.0

    def look(self):
        """The seconds until the next look; None: nothing is left to do here."""
        record, now = self._record, time.monotonic()
        if not record.is_ours():
            for each in (*self._groups.values(), *self._series.values()):
                record.remove_group(each.place[0])
            return None
        gone = set(self._groups)
        for group, name in list(self._c10d._world.pg_names.items()):
            known = self._groups.get(name)
            if known is None or known.group() is not group:
                known = self._add(group, name)
            if known is not None:
                gone.discard(name)
                self._count(known, group, now)
        group = None  # the program may destroy it before the next look
        for name in gone:
            record.remove_group(self._groups.pop(name).place[0])
        self._look_at_calls(now)
        try:
            self._look_at_arrivals()
        except Exception:  # the rest does not need it
            self._arrivals_every_s = 0
        self._look_at_noted()
        self._look_at_threads()
        return _EVERY_S if now - self._moved_at < _IDLE_AFTER_S else _SELDOM_S

    def _add(self, group, name):
        """None: it is not over Gloo, has one member, or there is no place."""
        if old := self._groups.pop(name, None):
            self._record.remove_group(old.place[0])
        if gloo_of(group, self._cpu) is None:
            return None
        place = self._record.add_group(_shown_name(name), group.rank(), group.size())
        if place is None:
            return None
        made = self._groups[name] = _Group(group, place)
        return made

    def _seen(self, group):
        backend = group and gloo_of(group, self._cpu)
        return backend._get_sequence_number_for_group() if backend else 0

    def _count(self, known, group, now):
        seen = self._seen(group)
        if seen == known.seen:
            return
        known.seen, known.moved_at, known.is_read = seen, now, False
        self._moved_at = now
        number = seen - known.messages
        self._record.set_calls(known.place[0], number)
        known.left_ns = at = time.monotonic_ns()
        self._record.enter(known.place, number, _UNKNOWN, at, at)

    # A message is awaited by its number at the other end: that is written also where none lasts.
    def _look_at_noted(self):
        record, noted = self._record, self._noted.series
        made = [name for name, series in list(noted.items())
                if series.call.operation in (_INIT_PROCESS_GROUP, _NEW_GROUP) and not series.open]
        for name in made[:-_MADE_MAX]:
            del noted[name]
        for name in [name for name, series in self._series.items() if noted.get(name) is not series]:
            record.remove_group(self._series.pop(name).place[0])
        still = time.monotonic_ns() - int(_STILL_S * 1e9)
        for name, series in list(noted.items()):
            if name not in self._series:
                series.place = record.add_group(name, series.rank, series.size, series.peer)
                if series.place is None:
                    continue
                self._series[name] = series
            record.set_calls(series.place[0], series.calls)
            for number, claim in list(series.claims.items()):
                if number not in series.open:
                    record.leave(claim, time.monotonic_ns())
                    del series.claims[number]
                elif record.is_old(claim):
                    series.claims[number] = record.enter(series.place, number, series.call, series.open[number])
                    record.leave(claim, time.monotonic_ns())
            for number, entered in list(series.open.items())[:_OPEN_MAX]:
                if entered < still and number not in series.claims:
                    series.claims[number] = record.enter(series.place, number, series.call, entered)

    # Each thread of Python but this one may make calls, except those that wait for the end of one.
    def _look_at_threads(self):
        inside = set(self._noted.waiting)
        is_open = inside and (any(each.open for each in self._groups.values())
                              or any(each.claims for each in self._series.values()))
        threads = set(sys._current_frames()) - {get_ident()} if is_open else ()
        waiting = len(inside.intersection(threads))
        if (len(threads), waiting) != self._was_waiting:
            self._was_waiting = len(threads), waiting
            self._record.set_threads(max(len(threads), 1), waiting)

    # What the flight recorder says of each group is a line, which costs microseconds. All of its 2000 calls cost tens of
    # milliseconds: they are read where this process waits, and where it does something else for long.
    def _look_at_calls(self, now):
        still = [each for each in self._groups.values() if not each.is_read and (
            now - each.moved_at >= _STILL_S or each.exchanges_messages and now - each.read_at >= _LONG_S)]
        waiting = [each for each in self._groups.values() if each.open]
        if self._flight_recorder is None or not (still or waiting):
            return
        status = json.loads(self._flight_recorder(includeCollectives=False)).get("pg_status", {})
        over = {id: int(each["last_completed_collective"]) for id, each in status.items()}
        for known in waiting:
            self._close(known, over.get(known.id, -1))
        if now >= self._may_read_at and any(
                each.id is None or each.exchanges_messages or over.get(each.id) != each.seen
                or now - each.moved_at >= _LONG_S for each in still):
            self._read_calls(now)

    # All ranks read at the same moments, by the clock of the wall: what they read is of the same calls.
    def _look_at_arrivals(self):
        if not self._arrivals_every_s or self._flight_recorder is None:
            return
        slot, after = divmod(time.time(), self._arrivals_every_s)
        if after > max(_ARRIVALS_WITHIN_S, self._arrivals_every_s / 8):
            return
        if slot == self._arrivals_slot or all(each.moved_at < self._arrivals_at for each in self._groups.values()):
            return
        # In a job on GPUs these are the lesser part of its calls, and nothing is known here of its messages.
        if any("nccl" in str(backend) for backend, _ in list(self._c10d._world.pg_map.values())):
            return
        self._arrivals_slot, self._arrivals_at = slot, time.monotonic()
        text = self._flight_recorder()
        if len(text) > _ARRIVALS_TEXT_MAX:
            self._arrivals_every_s = 0
            return
        entries, offset = _last_entries(text, _ARRIVALS_BYTES), time.monotonic_ns() - time.time_ns()
        waits = False  # for what is not known
        latest = {}  # by the name of a group: its number there
        for entry in reversed(entries):
            latest.setdefault(entry["process_group"][0], entry["pg_id"])
        for entry in entries:
            name, number = entry["process_group"][0], entry["collective_seq_id"]
            known = self._groups.get(name)
            if known is not None and entry["op_id"] - number > known.foreign:  # a message, perhaps from any source
                waits, known.foreign = waits or known.arrived > 0, entry["op_id"] - number
            # A group that was destroyed may have had the same name, and have made more calls. The latest call may not be over.
            if (known is None or entry["is_p2p"] or entry["pg_id"] != latest[name] or entry["op_id"] > known.seen
                    or number <= known.arrived or number >= known.seen - known.messages):
                continue
            known.arrived = number
            call = _Call(entry, self._roots.of(name, entry["op_id"]))
            if call.operation in _ONE_WAITS:
                waits = waits or call.root in (_NO_ROOT, known.group().rank())
            elif call.operation:
                entered = max(entry["time_created_ns"] + offset, 1)
                self._record.enter(known.place, number, call, entered, entered)
        if waits:  # as a rank that exchanges messages
            self._noted.end(self._noted.begin("messages (seen)", _SEND_RECV, 1, 2, -1))

    def _close(self, known, over):
        # Calls need not end in their order: which have is in the flight recorder's whole text.
        is_exact = len(known.open) == 1 or not known.is_read
        for op, (claim, number, call, entered) in list(known.open.items()):
            if op == over or (op < over and is_exact):
                self._record.leave(claim, time.monotonic_ns())
                del known.open[op]
                known.is_read = known.is_read and is_exact
            elif self._record.is_old(claim):
                known.open[op][0] = self._record.enter(known.place, number, call, entered)
                self._record.leave(claim, time.monotonic_ns())

    def _read_calls(self, now):
        before = {name: known.seen for name, known in self._groups.items()}
        text = self._flight_recorder()
        offset = time.monotonic_ns() - time.time_ns()
        entries = _entries_in(text, self._groups)
        for name, known in self._groups.items():
            known.is_read, known.read_at = True, now
            # A group that was destroyed may have had the same name, and have made more calls.
            if name in entries and 0 < entries[name][0][0]["op_id"] <= self._seen(known.group()):
                self._take(name, known, before[name], *entries[name], offset)
        self._may_read_at = now + (time.monotonic() - now) / _SHARE_OF_TIME

    def _take(self, name, known, seen, recent, found, offset):
        last = recent[0]
        number = last["collective_seq_id"]
        messages = max(seen, last["op_id"]) - number
        known.exchanges_messages = known.id is not None and messages > known.messages
        known.messages, known.id = messages, str(last["pg_id"])
        self._record.set_calls(known.place[0], number)
        for op in [op for op in known.open if op not in found]:
            self._record.leave(known.open.pop(op)[0], time.monotonic_ns())
        # What other ranks that have not left them may do otherwise.
        for entry in reversed(recent):
            op, its = entry["op_id"], entry["collective_seq_id"]
            if known.detailed < its and op not in found and op not in known.open:
                known.detailed = its
                entered = max(entry["time_created_ns"] + offset, 1)
                self._record.enter(known.place, its, _Call(entry, self._roots.of(name, op)), entered,
                                   max(known.left_ns, entered))
        for op, entry in sorted(found.items()):
            if op not in known.open:
                number, call = entry["collective_seq_id"], _Call(entry, self._roots.of(name, op))
                entered = max(entry["time_created_ns"] + offset, 1)
                known.open[op] = [self._record.enter(known.place, number, call, entered), number, call, entered]


def _shown_name(name):
    """Equal on all members. The default group's name is the number 0."""
    shown = "default_pg" if name == "0" else f"group {name}"
    return "".join(each if " " <= each <= "~" else "?" for each in shown)[:32]


def _entries_in(text, names):
    """By the name of a group: its last calls, the latest first, and by Gloo's count those which are not over."""
    found = {}
    for name in names:
        mark = b'"process_group":[%s,' % json.dumps(name).encode()
        recent, at = [], text.rfind(mark)
        while at >= 0 and len(recent) < _RECENT_MAX:
            entry = _object_around(text, at)
            if recent and entry["pg_id"] != recent[0]["pg_id"]:
                break
            recent.append(entry)
            at = text.rfind(mark, 0, at)
        if recent:
            found[name] = recent, {}
    at = text.rfind(b'"retired":false')
    left = _OPEN_MAX
    while at >= 0 and left > 0:
        entry = _object_around(text, at)
        name = entry["process_group"][0]
        if name in found and entry["pg_id"] == found[name][0][0]["pg_id"] and not entry["is_p2p"]:
            found[name][1][entry["op_id"]] = entry
        at = text.rfind(b'"retired":false', 0, at)
        left -= 1
    return found


def _last_entries(text, size):
    end = text.rfind(b'}],"') + 1
    begin = text.find(b"[{", 0, end) + 1
    if end - begin > size:
        begin = text.find(b'},{"collective_seq_id":', end - size, end) + 2
    return json.loads(b"[" + text[begin:end] + b"]") if 0 < begin < end else []


def _object_around(text, at):
    """The object of JSON that has no other one inside of it; None: `at` is -1."""
    return None if at < 0 else json.loads(text[text.rfind(b"{", 0, at):text.index(b"}", at) + 1])


def gloo_of(group, cpu):
    """The backend of a group with others over Gloo; None: it has none."""
    if group.size() < 2:
        return None
    try:
        backend = group._get_backend(cpu)
    except RuntimeError:
        return None
    return backend if backend.name() == "gloo" else None


class _Thread:
    """Looks until the program ends; a forked process has none."""

    def __init__(self, c10d, record, noted):
        self._sampler = Sampler(c10d, record, noted)
        self._stop, self._ended = allocate_lock(), allocate_lock()
        self._stop.acquire()
        self._ended.acquire()
        atexit.register(self._end, os.getpid())
        self._looks, self._holds = allocate_lock(), False
        os.register_at_fork(before=self._hold, after_in_parent=self._go_on, after_in_child=self._go_on)
        start_new_thread(self._run, ())

    def _run(self):
        try:
            wait = _EVERY_S
            while wait is not None and not self._stop.acquire(timeout=wait):
                with self._looks:
                    wait = self._sampler.look()
        except Exception as error:
            _complain(error)
        finally:
            self._ended.release()

    # A process that is forked while this thread reads the flight recorder would find its lock taken for ever.
    def _hold(self):
        self._holds = self._looks.acquire(timeout=1)

    def _go_on(self):
        if self._holds:
            self._holds = False
            self._looks.release()

    # A thread that is inside of PyTorch must not be stopped there by the interpreter's end.
    def _end(self, pid):
        if os.getpid() == pid:
            self._stop.release()
            self._ended.acquire(timeout=1)


def begin(c10d):
    """Before the first group is made. What Making needs; None: there is no record for this process."""
    record = open_record()
    if record is None:
        return None
    noted = _Noted()
    noted.install(c10d)
    _Thread(c10d, record, noted)
    return noted


class Making:
    """The making of a group, in which its members are awaited."""

    def __init__(self, noted, size, rank, name):
        self._noted, self._call = noted, None
        # All groups of before are gone, on all ranks; a rank that was started later has made none.
        if name == "0":
            noted.series, noted.channels = {}, 0
        if isinstance(rank, int) and 0 <= rank < size and size > 1:
            operation = _INIT_PROCESS_GROUP if name == "0" else _NEW_GROUP
            self._call = noted.begin(_shown_name(name)[:25] + " (made)", operation, rank, size)

    def __enter__(self):
        self._noted.__enter__()

    def __exit__(self, *error):
        self._noted.__exit__()
        self._call and self._noted.end(self._call)


def _complain(error):
    try:
        print(f"ddprun: the collectives of this worker are not shown any more: {type(error).__name__}: {error}",
              file=sys.stderr)
    except Exception:
        pass
