import ctypes
_getenv = ctypes.CDLL(None).getenv
_getenv.restype = ctypes.c_char_p
HOME = _getenv(b"HOME")
