import logging
import torch  # noqa: F401


def say():
    loggers = logging.root.manager.loggerDict
    names = sorted(name for name in loggers if name.startswith("logs"))
    print(*(f"{name} {type(loggers[name]).__name__} {getattr(getattr(loggers[name], 'parent', None), 'name', '-')}" for name in names))
    print(logging.getLogger("logs.utils.first").getEffectiveLevel())


import logs  # noqa: E402, F401
say()
import logs.more  # noqa: E402, F401
say()
import logs.last  # noqa: E402, F401
say()

import said  # noqa: E402
said.end()
