"""Holds a Python program before its first line, for ddprun's standbys (agent/README.md, "Standbys").

The agent starts the user's own command line with this file first on PYTHONPATH. Python imports it before it looks at the
program. Here the process, called zygote, imports what workers need and forks standbys. A standby that is given a rank
returns from this file, and the interpreter runs the program as it always does.

The modules that were imported here are hidden until the program imports one of them. So the program starts as it would
without them, and at the moment when it would load them this file can see whether they are what it would get: the same
files, the same environment, nothing of that name in its own folder. If not, the process executes itself anew.
"""

import os
import sys

_SOCKET_VARIABLE = "DDPRUN_ZYGOTE_FD"  # set for the zygote alone
_OLDEST = (3, 10)

# rendezvous/common/worker_abi/zygote_protocol.h
_VERSION = 1
_HELLO, _READY, _UNFIT, _ANEW = 1, 2, 3, 4
_PREPARE, _FORK, _BECOME = 16, 17, 18
_HAS_LINK, _HAS_MIRROR, _HAS_SNAPSHOT = 1, 2, 4
_IS_IN_CONTROL_GROUP = 1
_TEXT_MAX = 60_000
_PR_SET_PDEATHSIG = 1

# Libraries in C read these while they are loaded, which nobody sees.
_READ_IN_C = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "LD_", "MALLOC_", "GLIBC_",
              "TORCH_", "PYTORCH_", "CUDA_", "DNNL_", "ONEDNN_", "ATEN_")


_hooks = []  # the entry of sys.path that has them, if any
_in_place_error = None  # why that library cannot be loaded
_RECORDS_NCCL = "DDPRUN_NCCL_RECORD"  # the hooks read it and take it away


def _top(name):
    return name.partition(".")[0]


def _go_on():
    """Leaves the interpreter as if this file had never been there."""
    own = __file__.rpartition("/")[0]
    sys.path[:] = _hooks + [entry for entry in sys.path if entry != own]
    sys.path_importer_cache.pop(own, None)
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # of the hooks, else the user's own, if there is one
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        raise ImportError("no sitecustomize", name="sitecustomize") from None


def _load_in_place():
    """What replacement in place needs in C (worker_lib/in_place/in_place.h); it has to be there before PyTorch."""
    import ctypes
    if hasattr(_library(), "ddprun_gloo_calls"):
        return  # this zygote loads modules for the second time
    try:
        content = __loader__.get_data(__file__.rpartition("/")[0] + "/libddprun_in_place.so")
    except OSError:
        return  # not as the agent starts it
    library = os.memfd_create("ddprun-in-place")
    try:
        os.write(library, content)
        ctypes.CDLL(f"/proc/self/fd/{library}", ctypes.RTLD_GLOBAL)
    except OSError as error:
        global _in_place_error
        _in_place_error = str(error)
    finally:
        os.close(library)


class _Unfit(Exception):
    """Nothing may be forked from this process; `name`: the module that is to blame, or empty."""

    def __init__(self, name, why):
        super().__init__(why)
        self.name = name


class _OwnFile:
    """A descriptor that stays open while the program runs. It may close all that it finds, and open files that get their
    numbers, so each use asks whether the number is still that file's."""

    def __init__(self, number):
        self.number = number
        self._file = self._now()

    def _now(self):
        about = os.fstat(self.number)
        return about.st_dev, about.st_ino

    def is_there(self):
        try:
            return self._now() == self._file
        except OSError:
            return False

    def close(self):
        if self.is_there():
            os.close(self.number)


class _Channel:
    """A socket to the agent; each packet is one message."""

    def __init__(self, descriptor):
        import _socket
        self.socket = _socket.socket(fileno=descriptor)

    def given_up(self):
        """Its descriptor alone, which no object closes."""
        return _OwnFile(self.socket.detach())

    def send(self, kind, text="", flags=0):
        header = b"".join(number.to_bytes(4, sys.byteorder) for number in (kind, _VERSION, os.getpid(), flags))
        self.socket.send(header + text.encode("utf-8", "surrogateescape")[:_TEXT_MAX])

    def receive(self):
        """(kind, flags, text, descriptors); ends this process where the agent has closed the socket."""
        import _socket
        try:
            data, ancillary, _, _ = self.socket.recvmsg(_TEXT_MAX + 16, _socket.CMSG_SPACE(8 * 4))
        except OSError:
            data = b""
        if len(data) < 16:
            os._exit(0)
        descriptors = [int.from_bytes(passed[at:at + 4], sys.byteorder)
                       for _, _, passed in ancillary for at in range(0, len(passed) - 3, 4)]
        kind, flags = (int.from_bytes(data[at:at + 4], sys.byteorder) for at in (0, 12))
        return kind, flags, data[16:].decode("utf-8", "surrogateescape"), descriptors


# ---- the program's own folder

def _folder_of_program():
    """What Python will put first on sys.path; None: nothing."""
    path = sys.argv[0] if sys.argv else ""
    if not path or getattr(sys.flags, "safe_path", False):
        return None
    if path in ("-c", "-m"):
        return os.getcwd()
    if os.path.isdir(path):
        return path
    if os.path.islink(path):
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return os.path.dirname(os.path.abspath(path))


def _hides_one_of(folder, names):
    """The first of these modules that `folder` has one of its own of; None: there is none."""
    try:
        there = os.listdir(folder)
    except OSError:
        return None
    for entry in there:
        name, dot, suffix = entry.partition(".")
        if name not in names or (dot and not suffix.endswith(("py", "pyc", "so"))):
            continue
        # A folder without Python in it (data/, logs/) loses against a module, wherever that is.
        if dot or os.path.exists(os.path.join(folder, entry, "__init__.py")):
            return name
    return None


def _entry_of(unit, path):
    """The first entry of sys.path that has it; None: it is in no folder, or in several."""
    file = getattr(unit.modules.get(unit.name), "__file__", None)
    if not file:
        return None
    folder = os.path.dirname(os.path.abspath(file))
    if os.path.basename(file).startswith("__init__."):
        folder = os.path.dirname(folder)
    return next((entry for entry in path if os.path.abspath(entry) == folder), None)


# ---- what was imported

class _Request:
    """A module to import, or several of one package, and names to ask for in it as `from … import` does."""

    def __init__(self, name, modules, names=(), is_named=True, is_needed=False):
        self.name, self.modules, self.names = name, modules, names
        self.is_named, self.is_needed = is_named, is_needed

    def perform(self):
        """Sentences about imports that find nothing."""
        import importlib
        left_out = []
        for name in self.modules:
            try:
                module = importlib.import_module(name)
                for each in self.names:
                    getattr(module, each, None)
            except ImportError as error:
                left_out.append(f"{name} cannot be imported: {error}")
                if name == self.name and self.is_needed:
                    raise _Unfit(name, left_out[-1]) from None
            except BaseException as error:
                raise _Unfit(self.name, f"the import of {name} ends with {type(error).__name__}: {error}") from None
        return left_out if self.is_named else []


_SET_BY_IMPORT = ("__spec__", "__loader__", "__package__", "__path__", "__file__", "__cached__")


class _Loader:
    """The loader of a module that is there already. It has what the module's own loader has, for a program that looks at a
    package before it imports it."""

    def __init__(self, preloaded, unit, name):
        self._preloaded, self._unit = preloaded, unit
        self._module, self._spec = unit.modules[name], unit.specs[name]
        self._own = getattr(self._spec, "loader", None)

    __class__ = property(lambda self: _Loader if self._own is None else type(self._own))

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "_own"), name)

    def create_module(self, spec):
        self._preloaded.show(self._unit)
        self._before = {name: value for name, value in vars(self._module).items() if name in _SET_BY_IMPORT}
        return self._module

    def exec_module(self, module):
        """Takes back what the interpreter has set."""
        for name in _SET_BY_IMPORT:
            if name in self._before:
                setattr(module, name, self._before[name])
            elif name in vars(module):
                delattr(module, name)
        module.__spec__ = self._spec
        self._preloaded.withdraw()


def _frames(frame):
    while frame:
        yield frame
        frame = frame.f_back


class _Preloaded:
    """The modules that the zygote has imported, and what they depend on. First on sys.meta_path of a standby.

    Threads may import at the same time. Each shows what it needs under the lock, and a package's modules appear when all
    that belongs to them is in its place. A thread may have begun to import a module that appears then, because a module of
    a second thread needs it. Until that import ends, the module has the spec that find_spec() has given: with its own spec,
    the interpreter would load it again."""

    def __init__(self):
        import _thread
        self._lock = _thread.RLock()
        self._path = list(sys.path)
        self._requests, self._units = [], []
        self._unit_of, self._shown = {}, set()
        self.left_out = []
        # A standby keeps these as long as it may have to start anew.
        self.at_start = None

    # ---- in the zygote

    def load(self, names, check):
        """`check` raises where the process cannot be forked any more; it is given the name of the request."""
        import logging, warnings  # noqa: F401  state.py looks at them
        without = {name[1:] for name in names if name.startswith("-")}
        names = [name for name in names if name not in without and not name.startswith("-")]
        first = [name for name in names if imports.top(name) == imports.top(names[0])]
        requests = [_Request(first[0], first, is_needed=True)]
        if "*" not in without:
            listed = packages.of_program()
            requests += [_Request(name, [name], listed[name], is_named=False) for name in listed if name not in without]
        requests += [_Request(name, [name]) for name in names if name not in first]
        lists = {part: list(state._list(part)) for part in state.LISTS}
        self._imported = {}
        for request in requests:
            self._load_one(request)
            check(request.name)
        self._tried = set(filter(packages.is_tried, self.loaded()))
        self._connect()
        self._separate()
        for unit in reversed(self._units):
            for key, (before, _) in unit.left.items():
                state.put(key, before)
        for part, items in lists.items():
            state._list(part)[:] = items
            state._tell(part)
        for name in self._unit_of:
            del sys.modules[name]
        self._standard = state.standard_library()
        self._expected, self._attributes = {**state.left(), **state.seen()}, state.attributes()
        sys.meta_path.insert(0, self)
        return self.loaded()

    def loaded(self):
        return sorted({unit.name for unit in self._units})

    def _load_one(self, request):
        number = len(self._requests)
        self._requests.append(request)
        seen, files, shared = state.seen(), set(_files_of_this_process()), set(_shared_memory())
        with imports.Loading(state, number, {name: unit.modules[name] for name, unit in self._unit_of.items()}) as loading:
            self.left_out += request.perform()
        if changed := state.changes(seen, state.seen()):
            raise _Unfit(request.name, f"{request.name} changes {state.words_of(min(changed, key=str))} while it is imported")
        for unit in loading.units:
            if why_unfit := self._why_unfit(unit):
                raise _Unfit(request.name, why_unfit)
        if left := sorted(set(_files_of_this_process()) - files):
            raise _Unfit(request.name, f"{request.name} opens {_words_of_file(left[0][1])} while it is imported")
        if set(_shared_memory()) - shared:
            raise _Unfit(request.name, f"{request.name} maps memory that processes share while it is imported")
        for module, names in loading.needed().items():
            self._imported.setdefault(module, set()).update(names)
        self._units += [unit for unit in loading.units if unit.modules]
        for unit in loading.units:
            self._unit_of.update((name, unit) for name in unit.modules)
        folder = _folder_of_program()
        if hidden := folder and _hides_one_of(folder, {unit.name for unit in loading.units}):
            raise _Unfit(request.name, f"the program's folder has a module {hidden} of its own")

    @staticmethod
    def _why_unfit(unit):
        package = packages.PACKAGES.get(unit.name) or packages.Package()
        if "copies" in package.does:  # it looks for the variables with these beginnings among all
            unit.reads = {name for name in unit.reads if name.startswith(package.variables)}
        if read := (unit.reads & imports.OF_A_WORKER) - set(package.reads):
            return f"{unit.name} reads {min(read)} while it is imported"
        if does := unit.does - set(package.does):
            return f"{unit.name} {imports.DOINGS[min(does)]} while it is imported"
        if package.renew:
            try:
                package.renew(unit.modules)
            except Exception as error:
                return f"{unit.name} is not as it was when it was tried: {type(error).__name__}: {error}"
        return None

    def _connect(self):
        """From the modules that import each other to the units that need each other."""
        for module, names in self._imported.items():
            unit = self._unit_of.get(module)
            for name in names if unit else ():
                needed = self._unit_of.get(name)
                if needed and needed is not unit and needed.request <= unit.request:
                    unit.needs.add(needed)
        for unit in self._units:  # what was imported of a package before
            unit.needs.update(other for other in self._units if other.name == unit.name and other.request < unit.request)

    def _separate(self):
        """A package gets an attribute for each module that is imported from it, which is to come with that module."""
        for name, unit in self._unit_of.items():
            package, _, attribute = name.rpartition(".")
            owner = self._unit_of.get(package)
            if owner not in (None, unit) and vars(owner.modules[package]).get(attribute) is unit.modules[name]:
                state.know(package, owner.modules[package])
                unit.left["attribute", name] = (state.MISSING, unit.modules[name])

    # ---- in a standby

    # As a finder: the program looks for something that is not there.
    def find_spec(self, name, path=None, target=None):
        unit = self._unit_of.get(name)
        if unit is None or target is not None:  # importlib.reload() has a target
            return None
        is_import = any(frame.f_code.co_name == "_find_and_load_unlocked" and frame.f_locals.get("name") == name
                        for frame in _frames(sys._getframe(1)))
        with self._lock:
            module = unit.modules[name]
            if unit in self._shown and not (is_import and sys.modules.get(name) is module):
                return None
            from importlib.machinery import ModuleSpec
            spec = ModuleSpec(name, _Loader(self, unit, name))
            if original := unit.specs[name]:
                spec.origin, spec.has_location, spec.cached = original.origin, original.has_location, original.cached
                spec.submodule_search_locations = original.submodule_search_locations
            if is_import:
                module.__spec__ = spec
            return spec

    def hidden_by_program(self):
        """A module of the program's folder that it would get instead of one of the standard library that is there."""
        folder = _folder_of_program()
        return folder and _hides_one_of(folder, {imports.top(name) for name, _ in self._standard})

    def _closure(self, unit):
        found, waiting = set(), [unit]
        while waiting:
            each = waiting.pop()
            if each not in found and each not in self._shown:
                found.add(each)
                waiting += each.needs
        return [each for each in self._units if each in found]

    def show(self, unit):
        with self._lock:
            if unit not in self._shown:  # another thread may have shown it meanwhile
                self._show(unit)

    def withdraw(self):
        """Leaves sys.meta_path when there is nothing left to show. A thread that has looked for a module before it was
        there, and has not come to this finder yet, would find a second one then; its own import calls this again."""
        with self._lock:
            if len(self._shown) < len(self._units) or self not in sys.meta_path:
                return
            import _thread
            others = (frame for thread, frame in sys._current_frames().items() if thread != _thread.get_ident())
            if not any(frame.f_code.co_name == "_find_and_load" for other in others for frame in _frames(other)):
                sys.meta_path.remove(self)

    def _show(self, wanted):
        units = self._closure(wanted)
        if problem := self._why_not(units, wanted):
            unit, why = problem
            self.at_start.start_anew(self._requests[unit.request].name, why)
        for unit in units:
            self._show_one(unit)
        for unit in units:
            sys.modules.update(unit.modules)
        shown = {name: module for unit in self._shown for name, module in unit.modules.items()}
        self._expected.update({key: value for key, value in state.settings_of_libraries(shown).items()
                               if key not in self._expected})
        if len(self._shown) == len(self._units):
            self.at_start.close()
        for finder in [each for each in sys.meta_path if hasattr(each, "install_hooks")]:
            finder.in_place_error = _in_place_error
            finder.install_hooks(shown)

    def _show_one(self, unit):
        self._shown.add(unit)
        for key, (_, after) in unit.left.items():
            state.put(key, after)
            if key in self._attributes:
                self._attributes[key] = (*self._attributes[key][:2], after)
            elif key[0] not in ("attribute", "method"):
                self._expected[key] = after
        for part, (front, behind) in unit.lists.items():
            state.add(part, front, behind)
            self._expected[part, ""] = state.left_of(part)
        for function, registered, arguments, named in unit.registered:
            function(registered, *arguments, **named)
        package = packages.PACKAGES.get(unit.name)
        if package and package.renew:
            package.renew(unit.modules)
        for fd, printed in zip((1, 2), unit.printed):
            try:
                while printed:
                    printed = printed[os.write(fd, printed):]
            except OSError:
                pass  # the program has closed it

    def _why_not(self, units, wanted):
        """(the unit that is to blame, why), or None."""
        blamed = min(units, key=lambda unit: unit.request)
        for name, module in self._standard:
            if sys.modules.get(name) is not module:
                return blamed, f"the program has replaced the module {name}"
        shown = {name: module for unit in self._shown for name, module in unit.modules.items()}
        now = {**state.left(), **state.seen(), **state.settings_of_libraries(shown)}
        changed = {**state.changes(self._expected, now), **state.changed_attributes(self._attributes)}
        ignored = packages.PACKAGES[wanted.name].ignores if wanted.name in self._tried else ()
        for key in sorted(changed, key=str):
            if self._matters_to_all(key, changed[key], units, ignored):
                unit = wanted if key[0] in state.PARTS else blamed
                return unit, f"the program has changed {state.words_of(key)}"
        for unit in units:
            if why := self._why_not_one(unit, changed):
                return unit, why
        homes = {unit: _entry_of(unit, self._path) for unit in units}
        for unit, home in homes.items():
            if home is not None and home not in sys.path:
                return unit, f"the program has removed {home} from sys.path"
        # What it has looked for in vain is nowhere now, either; what is there is in no folder that the program has added, or has
        # moved before that of the package.
        for entry in sys.path:
            names = {name for unit in units for name in unit.missing}
            names |= {unit.name for unit, home in homes.items() if entry not in self._path or home is not None and
                      self._path.index(entry) > self._path.index(home) and sys.path.index(entry) < sys.path.index(home)}
            if hidden := _hides_one_of(entry or os.getcwd(), names):
                unit = next(unit for unit in units if unit.name == hidden or hidden in unit.missing)
                return unit, f"{entry or os.getcwd()} has a module {hidden} of its own"
        return None

    @staticmethod
    def _matters_to_all(key, change, units, ignored):
        part = key[0]
        if part in state.PARTS:
            return part not in ignored
        if part == "filters":
            if any(unit.printed[1] for unit in units) or not set(map(id, change[0])) <= set(map(id, change[1])):
                return True
            return any(each[0] != "ignore" for each in change[1] if not any(each is one for one in change[0]))
        return part in ("attribute", "finders", "process")

    def _why_not_one(self, unit, changed):
        package = packages.PACKAGES.get(unit.name) or packages.Package()
        prefixes = package.variables + (_READ_IN_C if unit.has_library or unit.request == 0 else ())
        for key in sorted(changed, key=str):
            part, name = key
            if part == "variable" and name not in package.reads:
                if name in unit.reads or prefixes and name.startswith(prefixes) or key in unit.left:
                    return f"the program sets {name}, at which {unit.name} looks while it is imported"
            if part in ("logger", "logging") and key in unit.left:
                return f"the program has changed {state.words_of(key)} before it imports {unit.name}"
        for key, (before, _) in unit.left.items():
            if key[0] in ("attribute", "method") and not state.is_now(key, before):
                return f"the program has changed {state.words_of(key)}, which {unit.name} changes"
        for name in unit.modules:
            if name in sys.modules:
                return f"the program has put a module {name} of its own into sys.modules"
        for name in unit.missing:
            if name in sys.modules:
                return f"the program has a module {name}, for which {unit.name} has looked"
        for path, about in unit.files.items():
            if imports.stamp(path) != about:
                return f"{path} has changed"
        return None


class _AtStart:
    """What a process has before the program's first line, for one that is to begin it anew."""

    def __init__(self, agent, hooks, environment, descriptors):
        import signal
        self._agent, self._hooks, self._environment = agent, hooks, environment
        self._passed = [_OwnFile(each) for each in descriptors]
        self._streams = [_OwnFile(os.dup(each)) for each in (1, 2)]
        self._folder, self._processors = os.getcwd(), os.sched_getaffinity(0)
        self._umask = os.umask(0o77)
        os.umask(self._umask)
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}

    def close(self):
        for each in filter(None, (self._agent, self._hooks, *self._streams)):
            each.close()

    def start_anew(self, request, why):
        """Executes the program in this process as if there were no standbys. Returns where the other ranks count on this
        process already, which must not go away then."""
        import signal
        if self._agent.is_there():
            try:
                _Channel(self._agent.number).send(_ANEW, f"{request}\0{why}")
            except OSError:
                pass
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            print(f"ddprun: this rank was a standby, which had imported {request} in advance, and {why}. The rank goes on, "
                  f"because it has a process group; to be sure, give --standby=off", file=sys.stderr)
            return
        environment = dict(self._environment)
        for finder in sys.meta_path:
            if hasattr(finder, "give_back"):
                finder.give_back(environment)
        path = environment.pop("PYTHONPATH", "")
        if path.partition(":")[0] in _hooks:  # by a number that is closed by now
            path = path.partition(":")[2]
        if path:
            environment["PYTHONPATH"] = path
        if self._hooks is not None and self._hooks.is_there():
            os.set_inheritable(self._hooks.number, True)
            archive = f"/proc/self/fd/{self._hooks.number}"
            environment["PYTHONPATH"] = f"{archive}:{path}" if path else archive
        for each in self._passed:
            if each.is_there():
                os.set_inheritable(each.number, True)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass
        for fd, stream in zip((1, 2), self._streams):
            if stream.is_there():
                os.dup2(stream.number, fd)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number in signal.valid_signals():
            # Python ignores these two, which exec would keep.
            if signal.getsignal(number) == signal.SIG_IGN and (
                    number not in self._ignored or number in (signal.SIGPIPE, signal.SIGXFSZ)):
                _library().signal(number, None)  # SIG_DFL; signal.signal() is for the main thread alone
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        os.umask(self._umask)
        os.chdir(self._folder)
        os.sched_setaffinity(0, self._processors)
        _library().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # each thread has one of its own
        program = sys.orig_argv[0]
        os.execve(program if "/" in program else sys.executable, sys.orig_argv, environment)


# ---- checks: may this process be forked?

def _files_of_this_process():
    for name in os.listdir("/proc/self/fd"):
        try:
            yield int(name), os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass


def _shared_memory():
    """Where this process has memory that it and a fork of it write for each other to see."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            place, access = line.split(maxsplit=2)[:2]
            if access[1:2] == b"w" and access[3:4] == b"s":
                yield place


def _words_of_file(target):
    return "a socket" if target.startswith("socket:") else f"a GPU ({target})" if target.startswith("/dev/nvidia") else target


def _why_unfit(own_sockets):
    if len(os.listdir("/proc/self/task")) > 1:
        # Some libraries (OpenBLAS) end their threads before a fork, and start them when they are needed.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        if len(os.listdir("/proc/self/task")) > 1:
            return "it starts a thread"
    for fd, target in _files_of_this_process():
        if target.startswith("/dev/nvidia") or target.startswith("socket:") and fd not in own_sockets:
            return f"it opens {_words_of_file(target)}"
    if sys.gettrace() or sys.getprofile():
        return "a debugger or profiler is active before the program starts"
    return None


# ---- the zygote

class _Zygote:
    def __init__(self, descriptor):
        self._agent_pid = os.getppid()
        self._sockets = {descriptor} | {fd for fd, target in _files_of_this_process() if target.startswith("socket:")}
        self._agent = _Channel(descriptor)
        self._preloaded = _Preloaded()

    def run(self):
        """Returns in a standby that has become a worker, and nowhere else."""
        self._agent.send(_HELLO, "%d.%d" % sys.version_info[:2])
        while True:
            kind, _, _, descriptors = self._agent.receive()
            if kind == _PREPARE and descriptors:
                names = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0).decode()
                self._prepare([name for name in names.split("\0") if name])
            elif kind == _FORK and descriptors and self._fork():
                self._agent.socket.close()
                return self._wait(_Channel(descriptors[0]), descriptors[1:])
            for descriptor in descriptors:
                os.close(descriptor)

    def _prepare(self, names):
        import gc
        try:
            if sys.version_info < _OLDEST:
                raise _Unfit("", "Python %d.%d is too old: 3.10 is needed" % sys.version_info[:2])
            if why := _why_unfit(self._sockets):  # a .pth file or the like has begun something
                raise _Unfit("", why)
            _library()
            _load_in_place()
            loaded = self._preloaded.load(names, self._check)
        except _Unfit as unfit:
            self._agent.send(_UNFIT, f"{unfit.name}\0{unfit}")
            os._exit(0)
        gc.collect()
        gc.freeze()  # a collection in a standby must not write into memory that all share
        self._agent.send(_READY, "\n".join([" ".join(loaded), *self._preloaded.left_out]))

    def _check(self, request):
        if why := _why_unfit(self._sockets):
            raise _Unfit(request, f"{request}: {why}")

    def _fork(self):
        """True in the new process, whose parent is the agent."""
        reading, writing = os.pipe()
        try:
            middle = os.fork()
        except OSError:  # the agent finds the socket of that standby closed
            os.close(reading)
            os.close(writing)
            return False
        if middle == 0:
            if os.fork() != 0:
                os._exit(0)
            os.close(writing)
            os.read(reading, 1)  # returns when the process between is gone, and the agent is the parent
            os.close(reading)
            return True
        os.close(reading)
        os.waitpid(middle, 0)
        os.close(writing)
        return False

    def _wait(self, agent, control_group):
        import signal
        os.setsid()
        _library().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._agent_pid:
            os._exit(0)
        agent.send(_HELLO, flags=_IS_IN_CONTROL_GROUP if self._enter(control_group) else 0)
        while True:
            kind, flags, _, descriptors = agent.receive()
            if kind == _BECOME:
                return self._become(agent, flags, descriptors)

    @staticmethod
    def _enter(control_group):
        for file in control_group:
            try:
                os.write(file, b"0")
            except OSError:
                return False
            finally:
                os.close(file)
        return bool(control_group)

    def _become(self, agent, flags, descriptors):
        environment, *streams = descriptors[:3]
        passed = descriptors[3:]
        for fd, stream in zip((1, 2), streams):
            os.dup2(stream, fd)
            os.close(stream)
        self._take_environment(environment)
        if flags & _HAS_LINK:
            for flag, name in ((_HAS_MIRROR, "DDPRUN_MIRROR_FD"), (_HAS_SNAPSHOT, "DDPRUN_SNAPSHOT_FD")):
                if flags & flag:
                    fd = descriptors.pop()
                    os.set_inheritable(fd, True)
                    os.environ[name] = str(fd)
            for name, fd in zip(("DDPRUN_LINK_FD", "DDPRUN_LINK_PAGE_FD", "DDPRUN_LINK_RECORD_FD"), descriptors[3:]):
                os.set_inheritable(fd, True)
                os.environ[name] = str(fd)
        # The hooks close the number that they find on the path.
        hooks = _OwnFile(os.dup(int(_hooks[0].rpartition("/")[2]))) if _hooks else None
        at_start = self._preloaded.at_start = _AtStart(agent.given_up(), hooks, dict(os.environ), passed)
        import atexit
        import gc
        atexit.register(gc.unfreeze)  # what is never collected, some extensions complain of at the end
        if threading := sys.modules.get("threading"):
            threading.main_thread()._set_native_id()  # up to Python 3.12 that of the process that was forked
        process = sys.modules.get("multiprocessing.process")
        if process is not None:
            process.current_process().authkey = os.urandom(32)
        if hidden := self._preloaded.hidden_by_program():
            at_start.start_anew("", f"the program's folder has a module {hidden} of its own")

    @staticmethod
    def _take_environment(file):
        text = os.pread(file, os.fstat(file).st_size, 0)
        os.close(file)
        wanted = dict(line.split(b"=", 1) for line in text.split(b"\0") if line)
        for name in set(os.environb) - set(wanted):
            del os.environb[name]
        for name, value in wanted.items():
            if os.environb.get(name) != value:
                os.environb[name] = value


def _library():
    try:
        import ctypes
    except ImportError as error:
        raise _Unfit("", f"this Python has no ctypes: {error}") from None
    return ctypes.CDLL(None)


def _start():
    descriptor = os.environ.pop(_SOCKET_VARIABLE, None)
    if descriptor is None:
        return
    own = __file__.rpartition("/")[0]
    others = os.environ.pop("PYTHONPATH", "").split(":")[1:]
    # The archive with the hooks (agent/python): a standby imports from there before the program starts.
    if others and others[0].startswith("/proc/self/fd/"):
        _hooks.append(others.pop(0))
        os.environ.pop(_RECORDS_NCCL, None)  # or a module that looks at all variables would have read it
    if others:
        os.environ["PYTHONPATH"] = ":".join(others)
    sys.path[:] = [entry for entry in sys.path if entry not in (own, *_hooks)]
    archive = int(own.rpartition("/")[2])  # that holds this file: modules that look at all others may read it
    for fd in (archive, int(descriptor)):
        os.set_inheritable(fd, False)
    try:
        _Zygote(int(descriptor)).run()
        os.close(archive)
    except BaseException:  # or the program would run here
        os._exit(1)


def _in_no_file(code):
    """For what runs later: coverage.py reports on files, and this one cannot be read."""
    parts = tuple(_in_no_file(each) if isinstance(each, type(code)) else each for each in code.co_consts)
    return code.replace(co_filename="<frozen importlib of ddprun>/sitecustomize.py", co_consts=parts)


def _rename(scope):
    for each in scope.values():
        if isinstance(each, type) and each.__module__ == __name__:
            _rename(vars(each))
        each = getattr(each, "__func__", getattr(each, "fget", each))
        if getattr(each, "__module__", None) == __name__ and hasattr(each, "__code__"):
            each.__code__ = _in_no_file(each.__code__)


def _part(name):
    """Another file of the archive, as a module that nothing else finds."""
    module = type(sys)(name)
    module.__dict__["__name__"] = __name__
    text = __loader__.get_data(f"{__file__.rpartition('/')[0]}/{name}.py")
    exec(compile(text, f"<frozen importlib of ddprun>/{name}.py", "exec"), module.__dict__)
    return module


_rename(globals())
if _SOCKET_VARIABLE in os.environ:
    packages, state, imports = map(_part, ("packages", "state", "imports"))
_start()
_go_on()
