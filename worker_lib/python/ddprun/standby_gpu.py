"""A prepared standby whose model is to be on a GPU (agent/README.md, "Replacement in place"). Where the agent has found no room for a
second model it waits before the program first uses the GPU, and makes the rest of the set-up when it has its place; the memory of the
process before has to come back until then.

ddprun's hooks run this file when torch.distributed is imported, where the agent has set DDPRUN_STANDBY_GPU.
"""

import ctypes
import os
import select
import sys
import time

# The driver gives memory back while it ends a process, in some 0.1 s for tens of gigabytes, and does not say when.
_MEMORY_LIMIT_S = 5
_LOOKS_FOR_MEMORY_S = 0.01


class _Link:
    """The link to the agent, by the library that hooks have loaded (in_place.h)."""

    def __init__(self, link):
        self._socket, self._library = link.socket, ctypes.CDLL(None)
        for name, result, *arguments in (("adopt", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
                                         ("offer_to_take_place", None, ctypes.c_void_p),
                                         ("is_placed", ctypes.c_int, ctypes.c_void_p),
                                         ("refuse", None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)):
            function = getattr(self._library, "ddprun_link_" + name)
            function.restype, function.argtypes = result, arguments
        self._page = (ctypes.c_char * len(link.page)).from_buffer(link.page)
        self._link = self._library.ddprun_link_adopt(link.socket.fileno(), self._page)

    def await_placed(self):
        """What the agent has said is left for ddprun.in_place."""
        self._library.ddprun_link_offer_to_take_place(self._link)
        while not self._library.ddprun_link_is_placed(self._link):
            select.select([self._socket], [], [])

    def refuse(self, why):
        self._library.ddprun_link_refuse(self._link, why.encode("utf-8", "replace"), 0)
        raise RuntimeError(why)


def _come_to_gpu(cuda, initialise, link):
    preparation, index, needed = os.environ["DDPRUN_STANDBY_GPU"].split()
    if preparation == "nothing":
        link.await_placed()
    initialise()
    if preparation == "context":
        _free_on(cuda, index)
        link.await_placed()
    limit = time.monotonic() + _MEMORY_LIMIT_S
    while True:
        try:
            free = _free_on(cuda, index)
            if free >= int(needed):
                return
            why = (f"the memory of the process before is not back after {_MEMORY_LIMIT_S} s: its GPU has {free >> 20} MiB free, and "
                   f"{int(needed) >> 20} MiB are needed")
        except sys.modules["torch"].AcceleratorError as error:
            why = f"its GPU has failed ({str(error).splitlines()[0]})"
            if preparation != "nothing":  # else there may be no room for a context yet
                link.refuse(why)
        if time.monotonic() > limit:
            link.refuse(why)
        time.sleep(_LOOKS_FOR_MEMORY_S)


def _free_on(cuda, index):
    """Makes a context there."""
    free, _ = cuda.mem_get_info(int(index))
    return free


def install(cuda, progress):
    """Into the module torch.cuda. `progress`: the hooks' own ddprun.progress."""
    link = progress.link_of_process()
    if "DDPRUN_PREPARED" not in os.environ or not link or link.socket is None:
        return
    initialise, has_come = cuda._lazy_init, False

    def come_once():
        nonlocal has_come
        if has_come:
            return initialise()
        has_come = True  # what follows comes here, too
        _come_to_gpu(cuda, initialise, _Link(link))
    cuda._lazy_init = come_once
