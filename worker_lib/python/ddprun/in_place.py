"""Functions of the library that ddprun's hooks load before PyTorch (worker_lib/c10d/in_place.cpp). Used by ddprun.recovery."""

import ctypes

_library = ctypes.CDLL(None)
is_there = hasattr(_library, "ddprun_gloo_calls") and hasattr(_library, "ddprun_stream_sum")


def gloo_calls():
    """How many calls over Gloo this process has taken part in: has a `value`."""
    calls = _library.ddprun_gloo_calls
    calls.restype = ctypes.POINTER(ctypes.c_uint64)
    return calls().contents


def stream_sum():
    """A function of an address and a size: two memories that differ in any 32 bits in a row have different sums."""
    sums = _library.ddprun_stream_sum
    sums.argtypes, sums.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    return sums
