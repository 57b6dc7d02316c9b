"""Imports packages in a zygote, and notes of each what a process that gets it later must know: its modules, which others it
needs, the variables that it read, what it printed, what it left (state.py), and what it did that is no plain start where
two processes share it (DOINGS).
"""

import builtins
import os
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader, SourcelessFileLoader

# What a module may do while it is imported that makes it unfit, unless packages.py says that it does no harm.
DOINGS = {
    "draws": "makes random numbers, a generator of them or a UUID",
    "draws from shared": "draws from a generator of random numbers that the program has, too,",
    "copies": "looks at all variables of the environment",
    "asks for its process id": "asks for its process id",
    "makes a lock": "makes a lock or a queue of multiprocessing",
    "makes a temporary file": "makes a temporary file or folder",
    "registers for forks": "registers a function for forks",
    "starts a process": "starts a process, which gets all variables of the environment",
}
# What a worker has and the zygote has not: a module that reads one while it is imported would miss it.
OF_A_WORKER = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"}
_CLOCKS = ("time", "time_ns")  # a seed may be made of their values
_FILE_LOADERS = (ExtensionFileLoader, SourceFileLoader, SourcelessFileLoader)


def top(name):
    return name.partition(".")[0]


def is_of_standard_library(name):
    return top(name) in sys.stdlib_module_names


class Unit:
    """What one request has loaded of one package."""

    def __init__(self, name, request):
        self.name, self.request = name, request
        self.modules, self.specs, self.files, self.has_library = {}, {}, {}, False
        self.needs = set()    # units
        self.reads = set()    # names of variables
        self.does = set()     # names in DOINGS
        self.reads_clock = False
        self.missing = set()  # modules that it looked for
        self.registered = []  # (atexit.register or the like, its arguments): called when the program imports the package
        self.printed = [b"", b""]
        self.left = {}        # state.changes(), without the lists
        self.lists = {}       # {part: (what it put before what was there, and behind it)}


class _Variables(dict):
    """In the place of the dictionary that os.environ, os.environb and the module posix share."""

    def __init__(self, variables, loading):
        super().__init__(variables)
        self._loading = loading

    def __getitem__(self, name):
        self._loading.unit().reads.add(os.fsdecode(name))
        return super().__getitem__(name)

    def get(self, name, default=None):
        self._loading.unit().reads.add(os.fsdecode(name))
        return super().get(name, default)

    def __contains__(self, name):
        self._loading.unit().reads.add(os.fsdecode(name))
        return super().__contains__(name)

    def _all(method):
        def called(self, *arguments):
            self._loading.unit().does.add("copies")
            return getattr(super(_Variables, self), method)(*arguments)
        return called

    __iter__, __len__, __or__, __ror__, __reversed__ = map(_all, ("__iter__", "__len__", "__or__", "__ror__", "__reversed__"))
    keys, items, values, copy = map(_all, ("keys", "items", "values", "copy"))


class _Missing:
    """The last finder: no other has found this module."""

    def __init__(self, loading):
        self._loading = loading

    def find_spec(self, name, path=None, target=None):
        self._loading.unit().missing.add(name)


class Loading:
    """While it is entered, all that is imported is noted. `units` has it afterwards, each after those that it needs."""

    def __init__(self, state, request, before):
        """`before`: {name: module} of all that was imported by other requests."""
        self._state, self._request, self._before = state, request, before
        self._stack, self._by_name, self.units = [], {}, []
        self._imported = {}  # {module: modules that it imports}
        self._taken_back = []

    def unit(self):
        return self._stack[-1]

    def __enter__(self):
        import atexit
        import importlib.util
        import multiprocessing.synchronize
        import posix
        import random
        import subprocess
        import tempfile
        import threading
        import time
        import uuid
        self._at_first = set(sys.modules)
        self._variables = os.environ._data
        self._recorded = _Variables(self._variables, self)
        for environment in (os.environ, os.environb):
            environment._data = self._recorded
        self._replace(posix, "environ", self._recorded)
        for name in _CLOCKS:
            self._replace(time, name, self._noting_clock(getattr(time, name)))
        for module, name, doing in ((os, "urandom", "draws"), (random, "_urandom", "draws"), (uuid, "uuid1", "draws"),
                                    (random.Random, "seed", "draws"), (os, "getpid", "asks for its process id"),
                                    (multiprocessing.synchronize.SemLock, "__init__", "makes a lock"),
                                    (tempfile, "mkdtemp", "makes a temporary file"),
                                    (tempfile, "_mkstemp_inner", "makes a temporary file"),
                                    (os, "system", "starts a process"), (os, "posix_spawn", "starts a process"),
                                    (os, "posix_spawnp", "starts a process"), (subprocess, "_fork_exec", "starts a process")):
            if hasattr(module, name):
                self._replace(module, name, self._noting(getattr(module, name), doing))
        self._replace(os, "register_at_fork", self._of_package(os.register_at_fork, self._registering_for_forks))
        for module, name in ((atexit, "register"), (threading, "_register_atexit")):
            if hasattr(module, name):
                self._replace(module, name, self._of_package(getattr(module, name), self._registering))
        self._replace(atexit, "unregister", self._of_package(atexit.unregister, self._unregistering))
        self._replace(builtins, "__import__", self._importing(builtins.__import__))
        self._finders = sys.meta_path[:]
        sys.meta_path[:] = [self, *self._finders, _Missing(self)]
        self._outputs = [os.memfd_create("ddprun-output") for _ in range(2)]
        self._saved = [os.dup(fd) for fd in (1, 2)]
        for fd, file in zip((1, 2), self._outputs):
            os.dup2(file, fd)
        self._printed = [0, 0]
        self._others = self._state.attributes_of(self._before)
        self._attributes = self._state.attributes()
        self._base, self._generators = self._state.left(), _generators()
        self._push("")
        return self

    def __exit__(self, *_):
        self._pop()
        for fd, saved, file in zip((1, 2), self._saved, self._outputs):
            os.dup2(saved, fd)
            os.close(saved)
            os.close(file)
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self and type(finder) is not _Missing]
        own = {id(vars(module)[name]): (vars(module)[name], value) for module, name, value in self._taken_back}
        for module, name, value in reversed(self._taken_back):
            setattr(module, name, value)
        for environment in (os.environ, os.environb):
            environment._data = self._variables
        self._variables.clear()
        self._variables.update(dict.items(self._recorded))
        self._assign_modules()
        # A module may have what was replaced under names of its own.
        for unit in self.units:
            for module in unit.modules.values():
                for name, value in list(vars(module).items()):
                    if id(value) in own:
                        setattr(module, name, own[id(value)][1])
        if self.units:  # the last one has asked for the others
            self.units[-1].left.update(self._state.changes(self._others, self._state.attributes_of(self._before)))

    def _replace(self, module, name, value):
        self._taken_back.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def _noting(self, function, doing):
        def called(*arguments, **named):
            is_seeded = function.__name__ == "seed" and (len(arguments) > 1 and arguments[1] is not None or named.get("a"))
            if self._stack and (unit := self._unit_that_calls(doing)) and not (is_seeded and not unit.reads_clock):
                unit.does.add(doing)
            return function(*arguments, **named)
        called.__name__ = function.__name__
        return called

    def _noting_clock(self, function):
        """A seed that a package gives to a generator may be the time, which all standbys would share."""
        def called(*arguments):
            if self._stack and (unit := self._unit_that_calls("reads a clock")):
                unit.reads_clock = True
            return function(*arguments)
        called.__name__ = function.__name__
        return called

    def _of_package(self, function, instead):
        """Calls `instead`, whose first two arguments are the unit and the function, where a package's own code calls. A module
        of the standard library, which stays visible, calls the function itself."""
        def called(*arguments, **named):
            name = sys._getframe(1).f_globals.get("__name__") or ""
            if not self._stack or is_of_standard_library(name):
                return function(*arguments, **named)
            return instead(self._by_name.get(top(name), self.unit()), function, *arguments, **named)
        called.__name__ = function.__name__
        return called

    @staticmethod
    def _registering(unit, function, registered, *arguments, **named):
        unit.registered.append((function, registered, arguments, named))
        return registered

    def _unregistering(self, _, function, registered):
        for unit in self._by_name.values():
            unit.registered[:] = [each for each in unit.registered if each[1] != registered]
        function(registered)

    @staticmethod
    def _registering_for_forks(unit, function, **named):
        unit.does.add("registers for forks")
        function(**named)

    def _unit_that_calls(self, doing):
        """The package whose code calls, by whatever way through the standard library; None: none is to blame."""
        frame = sys._getframe(2)
        while frame:
            name = frame.f_globals.get("__name__") or ""
            if name == "tempfile" and doing != "makes a temporary file":
                return None  # its generator asks for the process id before each use
            if not is_of_standard_library(name) and name != __name__:
                return self._by_name.get(top(name), self.unit())
            frame = frame.f_back
        return None

    def _importing(self, importing):
        def __import__(name, globals=None, locals=None, fromlist=(), level=0):
            if level == 0 and globals is not None:
                names = self._imported.setdefault(globals.get("__name__"), set())
                names.add(name)
                if fromlist:
                    names.update(f"{name}.{each}" for each in fromlist)
            return importing(name, globals, locals, fromlist, level)
        return __import__

    # As the first finder.
    def find_spec(self, name, path=None, target=None):
        if is_of_standard_library(name) or top(name) == self.unit().name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1:]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if type(spec.loader) in _FILE_LOADERS:
                    self._note_execution(spec.loader, name)
                return spec
        return None

    def _note_execution(self, loader, name):
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            if self not in sys.meta_path:
                return execute(module)
            self._imported.setdefault(self.unit().name, set()).add(name)
            self._push(top(name))
            try:
                execute(module)
            finally:
                self._pop()
        loader.exec_module = exec_module

    def _push(self, name):
        if self._stack:
            self._settle()
        unit = self._by_name.get(name)
        if unit is None:
            unit = self._by_name[name] = Unit(name, self._request)
        self._stack.append(unit)

    def _pop(self):
        self._settle()
        unit = self._stack.pop()
        if unit.name and unit not in self._stack:  # the one that has ended last is behind those that it needs
            self.units[:] = [each for each in self.units if each is not unit] + [unit]

    def _settle(self):
        """What has changed since the last time is of the unit that is being imported."""
        unit, now = self.unit(), self._state.left()
        changed = {**self._state.changes(self._base, now), **self._state.changed_attributes(self._attributes)}
        for key, (before, after) in changed.items():
            if key[0] in self._state.LISTS:
                front, behind = unit.lists.setdefault(key[0], ([], []))
                new = self._state.added(before, after)
                front[:0], behind[len(behind):] = new
            else:
                unit.left[key] = (unit.left.get(key, (before,))[0], after)
        self._base, self._attributes = now, self._state.attributes()
        drawn = _generators()
        if any(state != self._generators.get(name, state) for name, state in drawn.items()):
            unit.does.add("draws from shared")
        self._generators = drawn
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for at, file in enumerate(self._outputs):
            size = os.fstat(file).st_size
            unit.printed[at] += os.pread(file, size - self._printed[at], self._printed[at])
            self._printed[at] = size

    def _assign_modules(self):
        for name, module in sys.modules.items():
            if name in self._at_first or is_of_standard_library(name):
                continue
            unit = self._by_name.get(top(name))
            spec = getattr(module, "__spec__", None)
            if unit is None:
                if spec is None:
                    continue  # such as Cython's, which no package imports by its name
                unit = self._by_name[top(name)] = Unit(top(name), self._request)
                self.units.insert(0, unit)
            unit.modules[name], unit.specs[name] = module, spec
            origin = getattr(spec, "origin", None)
            if origin and os.path.isabs(origin):
                unit.files[origin] = stamp(origin)
                unit.has_library |= origin.endswith(".so")

    def needed(self):
        """{module: names of those that it imports}, for all that ran."""
        return self._imported


def _generators():
    """The states of those that a program seeds."""
    import random
    found = {"random": random.getstate()}
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if hasattr(numpy, "get_state") and not _is_being_imported(sys.modules["numpy"]):
        found["numpy"] = repr(numpy.get_state())
    if hasattr(torch, "get_rng_state") and not _is_being_imported(torch):
        found["torch"] = torch.get_rng_state().tolist()
    return found


def _is_being_imported(module):
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def stamp(path):
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size
