"""The backend `shm` for torch.distributed: ranks of one node exchange tensors on the CPU through shared memory.

    import ddprun.torch
    import torch.distributed as dist

    dist.init_process_group("shm")  # or "cpu:shm,cuda:nccl"; dist.new_group(backend="shm")

The wheel of ddprun has its library for some versions of torch; with any other the import raises ImportError.

Where the ranks cannot share memory it is Gloo, and rank 0 says why. On several nodes, what a training step exchanges
goes through memory within a node and through Gloo between nodes. A failure is a torch.distributed.DistBackendError
that names the rank; the group is of no further use then.

Programs that are not to be changed: DDPRUN_TORCH_BACKEND=shm (ddprun._torch_autoload).
"""

import collections
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

NAME = "shm"
_MARKS = "ddprun/came"  # in the store, by global rank
_SOON = datetime.timedelta(minutes=1)
_LOOK = datetime.timedelta(seconds=3)  # so late a rank is asked for; then after twice as long each time


def _load_library():
    if not dist.is_available():
        raise ImportError("ddprun.torch needs a torch with torch.distributed, and this one was built without")
    # Between versions of torch the layouts of its C++ classes differ.
    folder, beginning = os.path.dirname(__file__), "libddprun_torch-"
    library = os.path.join(folder, f"{beginning}{torch.__version__.partition('+')[0]}.so")
    if not os.path.exists(library):
        names = os.listdir(folder) if os.path.isdir(folder) else []
        versions = sorted(name[len(beginning):-len(".so")] for name in names if name.startswith(beginning))
        if not versions and os.uname().machine != "x86_64":
            raise ImportError(f"the backend shm is for x86-64, and this is {os.uname().machine}: use gloo")
        if not versions:
            raise ImportError("this copy of ddprun has no library for the backend shm: install the wheel (pip install ddprun)")
        raise ImportError(f"ddprun.torch has the backend shm for torch {' and '.join(versions)}, and this is torch "
                          f"{torch.__version__}: install one of these, or use gloo")
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(f"{library} cannot be loaded, so there is no backend shm: {error}") from error


_load_library()

# How often a group of these ranks was made. A program may end its groups and make them anew over the same store, where
# what the ranks said the first time still stands; all members of a group make it, so all count alike.
_made = collections.Counter()


def _meet(store, name, rank, ranks, timeout, why_missing):
    """Waits until all members are here. `why_missing(ranks, is_late)` says why they will not come, or None: perhaps
    they will; when it is late there has to be an answer."""
    keys = {member: f"{_MARKS}/{name}/{member}" for member in ranks}
    store.set(keys[ranks[rank]], NAME)
    until, look = time.monotonic() + timeout.total_seconds(), _LOOK
    while True:
        left = max(datetime.timedelta(seconds=until - time.monotonic()), datetime.timedelta(milliseconds=1))
        try:
            return store.wait(list(keys.values()), min(look, left))
        except RuntimeError:  # not each store has a type for it
            missing = [member for member in ranks if not store.check([keys[member]])]
        reason = why_missing(missing, look >= left) if missing else None
        if reason:
            raise dist.DistBackendError(reason)
        look *= 2


def _text(ranks):
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _make_backend(store, rank, ranks, timeout, name, meet_within, why_missing):
    """The backend for tensors on the CPU of a group of the global `ranks`, of which this is the one at index `rank`."""
    _made[name, ranks] += 1
    name = f"{name}.{_made[name, ranks]}"
    if len(ranks) > 1:
        _meet(store, name, rank, ranks, meet_within, why_missing)
    # Operators can take a group, and no store.
    carrier = dist.ProcessGroup(store, rank, len(ranks))
    made = torch.ops.ddprun.make_group(carrier.boxed(), name, list(ranks), timeout.total_seconds())
    return dist.ProcessGroup.unbox(made)._get_backend(torch.device("cpu"))


def _create(options, _):
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))

    def why_missing(missing, is_late):
        # Where Gloo's ranks leave their addresses.
        with_gloo = [rank for rank in missing if options.store.check([f"0/{ranks.index(rank)}"])]
        if with_gloo:
            return (f"the backend of this rank is shm and that of {_text(with_gloo)} is gloo: give all ranks of a "
                    f"group the same backend")
        return is_late and (f"{_text(missing)} did not come to make a group over shm within "
                            f"{options.timeout.total_seconds():g} s: are all ranks started, with the same backend and "
                            f"the same world size?")

    return _make_backend(options.store, options.group_rank, ranks, options.timeout, options.group_id, options.timeout,
                         why_missing)


if NAME not in dist.Backend.backend_list:
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def replace_gloo():
    """From now on, groups over Gloo have shm for their tensors on the CPU; get_backend() still says gloo."""
    make_group, is_said = c10d._new_process_group_helper, False
    if getattr(make_group, "_is_ddpruns", False):
        return

    def make_group_with_shm(group_size, group_rank, global_ranks, *arguments, timeout=None, **more):
        nonlocal is_said
        group, store = made = make_group(group_size, group_rank, global_ranks, *arguments, timeout=timeout, **more)
        if group is dist.GroupMember.NON_GROUP_MEMBER or group_size == 1:
            return made
        try:
            gloo = group._get_backend(torch.device("cpu"))
        except RuntimeError:
            return made  # it has none for the CPU
        if not isinstance(gloo, dist.ProcessGroupGloo):
            return made
        ranks = tuple(global_ranks) or tuple(range(group_size))

        def why_missing(missing, is_late):
            return is_late and (f"DDPRUN_TORCH_BACKEND=shm is set on this rank and not on {_text(missing)}: set it on "
                                f"all ranks or on none")

        # All members have just been connected over Gloo: who does not come soon does not come.
        backend = _make_backend(store, group_rank, ranks, timeout, group.group_name, min(timeout, _SOON), why_missing)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
        if not is_said and ranks[group_rank] == 0:
            is_said = True
            print(f"ddprun: {backend.name()} instead of gloo for tensors on the CPU (DDPRUN_TORCH_BACKEND=shm)",
                  file=sys.stderr, flush=True)
        return made

    make_group_with_shm._is_ddpruns = True
    c10d._new_process_group_helper = make_group_with_shm
