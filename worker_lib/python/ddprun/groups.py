"""The process group of a Python worker that can be replaced in place: what it has opened, how it is broken, and how it is
made again (agent/README.md, "Replacement in place").

ddprun's hooks run this file when torch.distributed is imported, before there is a group, in workers that the agent
replaces and in their prepared standbys (`_ddprun_groups`; hooks.py). ddprun.recovery uses it.

A prepared standby makes its set-up without the others: its group answers nothing, but that DistributedDataParallel can be
constructed in it.

Gloo cannot be aborted. What ends its calls is a library that ddprun's hooks load before PyTorch (c10d/gloo_interrupt.h). Calls of
NCCL are ended by nccl.py. A wait at the store ends when the store's connection is shut down, and the making of a communicator of
NCCL when the connections over which its ranks meet are.
"""

import contextlib
import ctypes
import functools
import os
import socket
import stat
import sys
import threading
import time

NONE_IS_LEFT = 1 << 32  # above every generation: the group is not made again

_LOOKS_FOR_SOCKETS_S = 0.01
_LOOKS_FOR_RANKS_S, _LOOKS_FOR_RANKS_MAX_S = 0.001, 0.05  # the first time; each further pause is a half longer
_OLD_S = 1.0
_ALONE = "ddprun_alone"


class NeedsOthers(RuntimeError):
    """The set-up of a prepared standby asks for what only the other ranks know."""


def _tcp_sockets():
    """(inode, duplicate, port of its peer, None for a listener) of each one of this process: a TCPStore does not say which is its
    own."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            duplicate = os.dup(int(name))
            if not stat.S_ISSOCK(os.fstat(duplicate).st_mode):
                os.close(duplicate)
                continue
            with socket.socket(fileno=duplicate) as each:
                if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
                    continue
                try:
                    port = each.getpeername()[1]
                except OSError:
                    port = None
                yield os.fstat(duplicate).st_ino, each, port


class _Calls:
    """How many calls over Gloo and NCCL this process has taken part in: `value`, which begins anew with each group."""

    def __init__(self, groups, of_gloo):
        self._groups, self._of_gloo = groups, of_gloo

    @property
    def value(self):
        nccl = self._groups.nccl
        return self._of_gloo.value + (nccl.calls() if nccl is not None else 0)


class DeviceFailed(RuntimeError):
    """The GPU of this process answers nothing but an error."""


class Groups:
    """The groups of this process. The main thread calls; shut() may be called by another one."""
    DeviceFailed = DeviceFailed  # this file is not imported as a module of the package

    def __init__(self, c10d):
        self.c10d = c10d
        self.is_prepared = "DDPRUN_PREPARED" in os.environ
        self.library_error = globals().get("in_place_error")  # why the library of in_place.py cannot be loaded
        self.refused = None  # why these groups cannot be made again
        self.on_refused = lambda why: None
        self._library = ctypes.CDLL(None)
        can_interrupt = getattr(self._library, "ddprun_can_interrupt_gloo", None)
        self._interrupt = self._library.ddprun_interrupt_gloo if can_interrupt is not None and can_interrupt() else None
        # While a group is made again: the inodes of the TCP sockets that there were, and, while NCCL connects, that there were then.
        self._before = self._before_nccl = None
        self._device = None  # that the model is on
        self.is_nccl = False
        self.nccl = None  # the Communicator of a group of NCCL that can be made again
        self._generation = self._shut_for = 0
        self._hidden = None  # the group of all ranks, while a group that answers nothing is in its place
        self.old = []  # groups that were broken, since when, and their communicators
        self._lock = threading.Lock()  # guards these
        self._url = self._timeout = None
        self._make = c10d._new_process_group_helper
        c10d._new_process_group_helper = self._make_noted
        self._rendezvous = c10d.rendezvous
        c10d.rendezvous = self._meet
        for name in ("isend", "irecv", "send", "recv", "batch_isend_irecv"):
            setattr(c10d, name, self._noting_messages(getattr(c10d, name)))

    def _refuse(self, why):
        if self.refused is None:
            self.refused = why
            self.on_refused(why)

    # ---- in place of functions of torch.distributed

    def _meet(self, url, rank=-1, world_size=-1, **options):
        self._url = url
        if not self.is_prepared:
            return self._rendezvous(url, rank, world_size, **options)
        where = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return iter([(sys.modules["torch.distributed"].HashStore(), *where)])

    def _noting_messages(self, call):
        @functools.wraps(call)
        def noted(*arguments, **options):
            if self.nccl is not None:
                self._refuse("its ranks send each other messages over NCCL (send, recv), by communicators that cannot be ended")
            return call(*arguments, **options)
        return noted

    def _make_noted(self, group_size, group_rank, ranks, backend, *rest, **options):
        if ranks:
            self._refuse("the program makes a group of its own (new_group, DeviceMesh)")
        if not ranks:
            self._timeout = options.get("timeout")
        make = self._make_alone if self.is_prepared else self._make
        return make(group_size, group_rank, ranks, backend, *rest, **options)

    def _make_alone(self, size, rank, ranks, backend, *rest, **options):
        c10d = self.c10d
        if _ALONE not in c10d.Backend.backend_list:
            c10d.Backend.register_backend(_ALONE, lambda _, rank, size, timeout: _alone(c10d, rank, size), devices=["cpu", "cuda"])
        group, store = self._make(size, rank, ranks, c10d.Backend(_ALONE), *rest, **options)
        c10d._world.pg_map[group] = (backend, store)
        c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
        return group, store

    # ---- for ddprun.recovery

    def shut(self, generation):
        """Ends the calls that wait in a group of an older generation than this, and the making of such a group. With NONE_IS_LEFT
        calls over NCCL are not ended, since they would leave garbage where nothing makes a step again: they wait until the agent
        ends this process."""
        with self._lock:
            if self._generation >= generation:
                return
            if self._interrupt is not None:
                self._interrupt(b"the group is made anew")
            self._shut_for = generation
            self._shut_new_sockets()
            if self._before_nccl is not None:
                threading.Thread(target=self._shut_while_nccl_connects, args=(self._before_nccl,), daemon=True).start()
            if self.is_nccl and generation != NONE_IS_LEFT:
                know_it = _Meeting(self, generation)
                if self.nccl is not None:
                    self.nccl.end_calls(know_it)
                else:  # the others wait for this rank's word nevertheless
                    threading.Thread(target=know_it.tell, daemon=True).start()

    def _shut_new_sockets(self, also_of_store=True):
        """With the lock. Over which sockets NCCL's ranks meet is not known; Gloo's listener is none of them, and must not be shut, which
        ends the process."""
        for inode, connection, port in _tcp_sockets() if self._before is not None else ():
            if port != self._port_of_store():
                before = self._before_nccl
            else:
                before = self._before if also_of_store else None
            if before is not None and inode not in before:
                with contextlib.suppress(OSError):  # the other end is gone
                    connection.shutdown(socket.SHUT_RDWR)

    def _shut_while_nccl_connects(self, before):
        """NCCL does not tell when it opens a further socket. Newer connections to the store are a newer generation's. `before`: what there
        was when it began to connect; it may be connecting the next group by now."""
        while True:
            with self._lock:
                if self._before_nccl is not before:
                    return
                self._shut_new_sockets(also_of_store=False)
            time.sleep(_LOOKS_FOR_SOCKETS_S)

    def why_not(self, device):
        """Why the groups of this process, whose model is on this device, cannot be made again; None: they can."""
        if self.refused is not None:
            return self.refused
        if not self.c10d.is_initialized():
            return "there is no process group when it comes to recoverable()"
        if self._url != "env://" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return "its ranks do not meet at the store of ddprun (init_process_group has a store or an address of its own)"
        backend = self.c10d.get_backend_config()
        by_device = dict(each.split(":", 1) for each in backend.split(",") if ":" in each)
        used = {by_device.get("cpu", "gloo"), by_device.get(device.type, backend)}
        if not used <= {"gloo", "nccl"}:
            return f"its process group is of {' and '.join(sorted(used))}, and Gloo's and NCCL's are made again"
        if "gloo" in used and "gloo" in backend and self._interrupt is None:
            return "calls over the Gloo of this PyTorch cannot be ended"
        if "nccl" not in used:
            return None
        from ddprun import nccl
        return nccl.why_not()

    def remember(self, device):
        """The group as it is made by the program, whose model is on this device."""
        group = self.c10d._get_default_group()
        self.rank, self.world_size = group.rank(), group.size()
        self._backend, self._device = self.c10d._world.pg_map[group][0], device
        self.is_nccl = device.type == "cuda" and "cuda:nccl" in self.c10d.get_backend_config()
        self._library.ddprun_read_unwind_tables_ahead()

    @staticmethod
    def _port_of_store():
        return int(os.environ["MASTER_PORT"])

    def _store(self, *prefix):
        """A connection of its own: one that another thread waits at, or that was shut, is of no use."""
        c10d = self.c10d
        store = sys.modules["torch.distributed"].TCPStore(os.environ["MASTER_ADDR"], self._port_of_store(), is_master=False,
                                                          wait_for_workers=False, timeout=self._timeout)
        return c10d.PrefixStore("/".join(["ddprun", os.environ["TORCHELASTIC_RESTART_COUNT"], *prefix]), store)

    def ask_all(self, about, word):
        """What each rank says, when all have said something; before there is a generation. Once for each `about`."""
        return _ask_all(self._store(about), self.rank, self.world_size, word)

    def say(self, about, word):
        """For those that ask_all() about it, without asking."""
        self._store(about).set(f"said/{self.c10d.get_rank()}", word)

    def calls(self, of_gloo):
        """How many calls this process has taken part in (_Calls); `of_gloo` counts those over Gloo."""
        return _Calls(self, of_gloo)

    def make_replaceable(self):
        """A group of NCCL once more, as one whose ranks can be replaced. All ranks call it. Gives the group."""
        self.c10d.destroy_process_group()
        return self.form(self._store("generation", "0"))

    @contextlib.contextmanager
    def made_again(self, generation, is_outdated):
        """For the time in which the group is made: gives its _Making. What that does ends with an exception when a newer
        generation begins, before which `is_outdated` becomes true."""
        c10d = self.c10d
        self.shut(generation)
        if self.nccl is not None:
            self.await_device()
            self.nccl.note_idle()
        if c10d.is_initialized():
            self.old.append((time.monotonic(), c10d._get_default_group(), self.nccl))
            c10d._world.pg_names.clear()  # or it waits for what the groups have under way
            c10d.destroy_process_group()
        with self._lock:
            self._generation, self.nccl = generation, None
            self._before = {inode for inode, *_ in _tcp_sockets()}
        try:
            yield _Making(self, self._store("generation", str(generation)), is_outdated)
        finally:
            self._before = None

    def await_device(self):
        """Until all that is queued there is done."""
        torch = sys.modules["torch"]
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError as error:  # an error of the context, which no call takes back
            raise self.DeviceFailed(f"its GPU has failed ({str(error).splitlines()[0]})") from error

    def free_old(self):
        """All ranks have come to make the group again."""
        for _, _, communicator in self.old:
            if communicator is not None:
                communicator.free()

    def form(self, store):
        """The group of all ranks, which come to it now. If one does not, the agent ends the round (replace_timeout)."""
        c10d, hook = self.c10d, sys.excepthook
        c10d._world.group_count = 0  # the group's name is a part of its keys, and one that was not made has a number, too
        with contextlib.ExitStack() as stack:
            if self.is_nccl:
                from ddprun import nccl
                stack.enter_context(nccl.variables())
            try:
                c10d.init_process_group(self._backend, store=store, rank=self.rank, world_size=self.world_size,
                                        timeout=self._timeout)
            finally:
                sys.excepthook = hook  # was wrapped once more
            group = c10d._get_default_group()
            if self.is_nccl:
                self._connect_nccl(group)
                self.nccl = nccl.Communicator(group._get_backend(self._device))
        return group

    def _connect_nccl(self, group):
        """Makes the communicator, which the first call would make otherwise."""
        group.bound_device_id = self._device
        with self._lock:
            if self._shut_for > self._generation:
                raise ConnectionError("a newer generation has begun")
            self._before_nccl = {inode for inode, *_ in _tcp_sockets()}
        try:
            group._get_backend(self._device).eager_connect_single_device(self._device)
        finally:
            with self._lock:
                self._before_nccl = None

    def hide(self):
        """Until show(): a call of the group is an error."""
        c10d = self.c10d
        self._hidden, instead = c10d._get_default_group(), _alone(c10d, self.rank, self.world_size, (
            "a step that is made again is not committed, and what follows its block must not call the other ranks: write "
            "`if step.committed:` before it"))
        c10d._world.pg_map[instead] = c10d._world.pg_map[self._hidden]  # PyTorch looks there for what it says of an error
        c10d._update_default_pg(instead)

    def show(self):
        if self._hidden is not None:
            self.c10d._world.pg_map.pop(self.c10d._get_default_group(), None)
            self.c10d._update_default_pg(self._hidden)
        self._hidden = None

    def forget_old(self):
        """Ends old groups. That joins their threads, which may still be in a call that fails: so they stay for a while."""
        now = time.monotonic()
        self.old = [each for each in self.old if now - each[0] < _OLD_S or (each[2] is not None and not each[2].is_freed())]

    def take_place(self):
        """From here on the groups of this prepared standby are with the others."""
        self.is_prepared = False


def _ask_all(store, rank, world_size, word):
    """What each rank says, when all have said something."""
    keys = [f"said/{each}" for each in range(world_size)]
    store.set(keys[rank], word)
    store.wait(keys)
    return [each.decode() for each in store.multi_get(keys)]


class _Meeting:
    """Whether all ranks know a generation."""

    def __init__(self, groups, generation):
        self._groups, self._generation, self._store = groups, generation, None
        self._pause = _LOOKS_FOR_RANKS_S  # one that makes its set-up comes late

    def tell(self):
        store = self._groups._store("known", str(self._generation))
        store.set(str(self._groups.rank), "")
        self._store = store

    def __call__(self, limit):
        """Says that this rank knows it. True: within this time all have."""
        end, keys = time.monotonic() + limit.total_seconds(), [str(rank) for rank in range(self._groups.world_size)]
        while True:
            try:
                if self._store is None:
                    self.tell()
                if self._store.check(keys):  # PyTorch writes two lines for each wait that ends without the keys
                    return True
            except Exception:  # the store is gone with the agent, which ends this process
                pass
            if time.monotonic() > end:
                return False
            time.sleep(self._pause)
            self._pause = min(1.5 * self._pause, _LOOKS_FOR_RANKS_MAX_S)


class _Making:
    """The making of the group of a generation. Its calls raise an exception when a newer generation has begun."""

    def __init__(self, groups, store, is_outdated):
        self._groups, self._store, self._is_outdated = groups, store, is_outdated
        self._check()

    def _check(self):
        """What was opened before a newer generation began was shut; this is for what is opened later."""
        if self._is_outdated():
            raise ConnectionError("a newer generation has begun")

    def ask_all(self, word):
        """What each rank says, when all have come."""
        words = _ask_all(self._store, self._groups.rank, self._groups.world_size, word)
        self._check()
        return words

    def check_results(self):
        """Before what a call over NCCL has left is used."""
        self._groups.await_device()
        self._check()

    def tell(self, text):
        """On one rank."""
        self._store.set("told", text)

    def told(self):
        return self._store.get("told")

    def group(self):
        self._groups.free_old()
        group = self._groups.form(self._store)
        self._check()
        return group


# ---- the group of a prepared standby

def _is_in_ddp():
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_globals.get("__name__") == "torch.nn.parallel.distributed":
            return True
        frame = frame.f_back
    return False


def _alone(c10d, rank, size, why="its set-up needs the other ranks' answer"):
    torch = sys.modules["torch"]

    def done(result):
        future = torch.futures.Future()
        future.set_result(result)
        return torch._C._distributed_c10d._create_work_from_future(future)

    class Alone(c10d.ProcessGroup):
        def __init__(self):
            super().__init__(rank, size)

        def getBackendName(self):
            return _ALONE

        def barrier(self, *_, **__):
            return done([])

        def broadcast(self, tensors, *_, **__):
            if not _is_in_ddp():
                raise _needs(why, "broadcast")
            return done(tensors)

        def allgather(self, outputs, inputs, *_, **__):
            if not _is_in_ddp():
                raise _needs(why, "all_gather")
            for output, given in zip(outputs, inputs):
                for each in output:
                    each.copy_(given)
            return done(outputs)

    def refuse(name):
        def call(self, *_, **__):
            raise _needs(why, name)
        return call

    for name in ("allreduce", "allreduce_coalesced", "reduce", "allgather_coalesced", "allgather_into_tensor_coalesced",
                 "_allgather_base", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
                 "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "send", "recv", "recv_anysource"):
        setattr(Alone, name, refuse(name))
    return Alone()


def _needs(why, name):
    return NeedsOthers(f"{why} ({name})")


current = None  # of this process


def install(c10d):
    """Into the module torch.distributed.distributed_c10d."""
    global current
    current = Groups(c10d)
