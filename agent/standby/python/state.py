"""What an import can see of a process besides modules, and what it leaves there.

Some of it can be taken away and put back: variables, loggers, filters of warnings, entries of sys.path and sys.meta_path,
attributes of modules of the standard library. So what the import of a package leaves is hidden until the program imports
that package. The rest is only compared.
"""

import os
import sys
import types

MISSING = type("Missing", (), {"__repr__": lambda self: "nothing"})()

# A key is (part, name). These parts are lists, and what imports add to them is put before or behind what is there then.
LISTS = ("filters", "path", "finders")
# These are compared for what the program has not got from the list of packages, or where that does not ignore them.
PARTS = ("logging", "signals", "numpy", "torch")

_WORDS = {"variable": "the variable {}", "logger": "the logger {}", "filters": "the filters of warnings",
          "attribute": "{}", "method": "{}", "path": "sys.path", "finders": "sys.meta_path", "signals": "a signal's handler",
          "logging": "the configuration of logging", "numpy": "{} of NumPy", "torch": "{} of PyTorch", "process": "{}"}


def words_of(key):
    return _WORDS[key[0]].format(key[1])


def _list(part):
    return {"path": sys.path, "finders": sys.meta_path, "filters": sys.modules["warnings"].filters}[part]


def _is_own(finder):
    return type(finder).__module__ == "sitecustomize"


def standard_library():
    return [(name, module) for name, module in list(sys.modules.items())
            if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__" and type(module) is types.ModuleType]


def _logger(logger):
    if hasattr(logger, "handlers"):
        return (logger, logger.level, logger.propagate, logger.disabled, logger.parent, tuple(logger.handlers),
                tuple(logger.filters))
    return (logger,)  # a PlaceHolder. The loggers below it, of which it has a list, are hidden and shown by themselves


_METHODS = (types.FunctionType, classmethod, staticmethod, property)
_others = {}  # modules of packages, whose attributes an import may replace


def attributes_of(modules):
    """What packages have that were imported before, and the methods of their classes. Too many to look at again and again."""
    _others.update(modules)
    found = {}
    for name, module in modules.items():
        for each, value in list(vars(module).items()):
            if callable(value):
                found["attribute", f"{name}.{each}"] = value
            # Not isinstance(), which asks the object: one of PyTorch's warns then.
            if issubclass(type(value), type) and value.__module__ == name and value.__name__ == each:
                found.update((("method", f"{name}:{each}.{method}"), function) for method, function in list(vars(value).items())
                             if type(function) in _METHODS)
    return found


def know(name, module):
    _others[name] = module


def is_now(key, value):
    owner, name = _owner(key)
    return vars(owner).get(name, MISSING) is value


def _owner(key):
    owner, _, name = key[1].rpartition(".")
    if key[0] == "attribute":
        return _module(owner), name
    module, _, of_class = owner.partition(":")
    return vars(_module(module))[of_class], name


def _module(name):
    return _others.get(name) or sys.modules[name]


def attributes():
    """What modules of the standard library have: {key: (the module's namespace, name, value)}."""
    return {("attribute", f"{name}.{each}"): (vars(module), each, value) for name, module in standard_library()
            for each, value in list(vars(module).items()) if callable(value)}


def changed_attributes(expected):
    """As changes(), for what attributes() has found."""
    return {key: (value, space.get(name, MISSING)) for key, (space, name, value) in expected.items()
            if space.get(name) is not value}


def left():
    """What an import may leave besides attributes, and put() can take away."""
    found = {("variable", os.fsdecode(name)): value for name, value in list(dict.items(os.environ._data))}
    if logging := sys.modules.get("logging"):
        found["logging", ""] = _logger(logging.root)
        found.update((("logger", name), _logger(logger)) for name, logger in list(logging.root.manager.loggerDict.items()))
    found.update(((part, ""), left_of(part)) for part in LISTS)
    return found


def left_of(part):
    return tuple(each for each in _list(part) if part != "finders" or not _is_own(each))


def seen():
    """What it may look at, and seldom changes."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = None
    import _locale
    found = {("process", "the current folder"): folder,
             ("process", "the set of processors"): os.sched_getaffinity(0),
             ("process", "the limit of recursion"): sys.getrecursionlimit(),
             ("process", "the flags of dlopen"): sys.getdlopenflags(),
             ("process", "the locale"): _locale.setlocale(_locale.LC_ALL),
             ("process", "sys.path_hooks"): tuple(sys.path_hooks)}
    found.update((("process", "sys." + name), getattr(sys, name, None)) for name in ("stdin", "stdout", "stderr"))
    if logging := sys.modules.get("logging"):
        found["logging", "disable"] = logging.root.manager.disable
    import _signal
    for number in _signal.valid_signals():
        found["signals", number] = _signal.getsignal(number)
    return found


def settings_of_libraries(modules):
    """Once they are there for the program, which may have modules of its own of these names."""
    found = {}
    try:
        if numpy := modules.get("numpy"):
            found["numpy", "the handling of errors"] = tuple(numpy.geterr().items())
            found["numpy", "the print options"] = repr(sorted(numpy.get_printoptions().items()))
        if torch := modules.get("torch"):
            found["torch", "the default dtype"] = torch.get_default_dtype()
            found["torch", "the default device"] = repr(torch.get_default_device())
            found["torch", "the recording of gradients"] = torch.is_grad_enabled()
            found["torch", "the choice of deterministic algorithms"] = torch.are_deterministic_algorithms_enabled()
            found["torch", "the precision of float32 products"] = torch.get_float32_matmul_precision()
    except AttributeError:  # an older version
        pass
    return found


def same(one, other):
    """Without a comparison of the program's objects by their own methods, which may do anything."""
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(same, one, other))
    if one is other:
        return True
    return type(one) is type(other) and type(one) in (bytes, str, int, bool, float, set) and one == other


def changes(before, after):
    """{key: (before, after)}. Modules get attributes at their first use, too, which says nothing."""
    return {key: (before.get(key, MISSING), after.get(key, MISSING)) for key in before.keys() | after.keys()
            if not same(before.get(key, MISSING), after.get(key, MISSING)) and (key[0] != "attribute" or key in before)}


def added(before, after):
    """What a list has got: (before what was there, behind it)."""
    old = [each for each in after if any(same(each, other) for other in before)]
    at = next((at for at, each in enumerate(after) if old and same(each, old[0])), len(after))
    new = [(at_new, each) for at_new, each in enumerate(after) if not any(same(each, other) for other in before)]
    return [each for at_new, each in new if at_new < at], [each for at_new, each in new if at_new > at]


def add(part, front, behind):
    place = _list(part)
    own = [each for each in place if part == "finders" and _is_own(each)]
    rest = [each for each in place if not any(each is one for one in own)]
    place[:] = own + front + rest + behind
    _tell(part)


def take_away(part, items):
    place = _list(part)
    place[:] = [each for each in place if not any(each is item for item in items)]
    _tell(part)


def _tell(part):
    if part == "filters":
        warnings = sys.modules["warnings"]
        getattr(warnings, "_filters_mutated", getattr(warnings, "_filters_mutated_lock_held", lambda: None))()


def put(key, value):
    part, name = key
    if part == "variable":
        if value is MISSING:
            os.environ.pop(name, None)
        else:
            os.environb[os.fsencode(name)] = value
    elif part in ("attribute", "method"):
        owner, name = _owner(key)
        if value is not MISSING:
            setattr(owner, name, value)
        elif name in vars(owner):
            delattr(owner, name)
    elif part in ("logger", "logging"):
        logging = sys.modules["logging"]
        loggers = logging.root.manager.loggerDict
        if value is MISSING:
            loggers.pop(name, None)
            return
        if part == "logger":
            loggers[name] = value[0]
        if len(value) > 2:
            (logger, logger.level, logger.propagate, logger.disabled, logger.parent, logger.handlers[:],
             logger.filters[:]) = value
            logger._cache.clear()
