"""Puts another object in its place, as packages do whose parts are loaded later."""
import sys
import types


class Own(types.ModuleType):
    pass


own = Own(__name__)
own.VALUE = 5
own.__spec__ = __spec__
sys.modules[__name__] = own
