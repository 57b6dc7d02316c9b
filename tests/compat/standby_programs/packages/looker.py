"""Notes what it sees while it is imported."""
import builtins
import logging
import os
import sys
import warnings
import torch
cwd, stdout, excepthook, repr_of = os.getcwd(), sys.stdout, sys.excepthook, builtins.repr
dtype, variable = torch.get_default_dtype(), os.environ.get("LOOKER")
dlopen_flags = sys.getdlopenflags()
root = logging.root.level, len(logging.root.handlers)
try:
    import optional
except ImportError:
    optional = None
filters = len([each for each in warnings.filters if each[0] == "error"])
