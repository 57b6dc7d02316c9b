"""What of replacement in place is written in C (worker_lib/c10d/in_place_step.cpp): between two steps of a training nothing
of the interpreter is in the processor's caches. It is in the library that ddprun's hooks have loaded. Used by ddprun.replace.
"""

import ctypes
import sys

import torch

_library = ctypes.PyDLL(None)


def _load():
    """(its module, why there is none)."""
    make = getattr(_library, "ddprun_in_place_types", None)
    if make is None or not hasattr(_library, "ddprun_stream_sum"):
        return None, "its package ddprun is of another version than the ddprun that has started it"
    if "t" in getattr(sys, "abiflags", ""):  # objects have another layout there
        return None, "its Python has no global interpreter lock"
    make.argtypes, make.restype = (ctypes.py_object,), ctypes.py_object
    return make(torch.Tensor), None


types, why_not = _load()


def gloo_calls():
    """How many calls over Gloo this process has taken part in."""
    calls = _library.ddprun_gloo_calls
    calls.restype = ctypes.POINTER(ctypes.c_uint64)
    return calls().contents


def stream_sum():
    """A function of an address and a size: two memories that differ in any 32 bits in a row have different sums."""
    sums = _library.ddprun_stream_sum
    sums.argtypes, sums.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    return sums
