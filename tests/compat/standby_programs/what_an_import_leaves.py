import logging
import os
import sys
import warnings


def seen():
    filters = [each for each in warnings.filters if each[1] and each[1].pattern == "set by import"]
    return ("SET_BY_IMPORT" in os.environ, "/set/by/import" in sys.path, len(filters),
            "setter" in logging.root.manager.loggerDict, "setter" in sys.modules)

print(seen())
import torch
print(torch.__name__, seen())
import setter
print(seen(), logging.getLogger("setter").level, setter.__name__)

import said
said.end()
