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

# What a worker has and the zygote has not: a module that reads one while it is imported would miss it.
_OF_A_WORKER = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"}
# Libraries in C read these while they are loaded, which nobody sees.
_READ_IN_C = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "LD_", "MALLOC_", "GLIBC_",
              "TORCH_", "PYTORCH_", "CUDA_", "DNNL_", "ONEDNN_", "ATEN_")


_hooks = []  # the entry of sys.path that has them, if any
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
    except OSError:
        pass  # groups.py says that it is not there
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


# ---- the environment that modules have read

class _RecordedEnvironment(type(os.environ)):
    def __getitem__(self, name):
        _reads.add(name)
        return super().__getitem__(name)


_reads = set()


class _Recording:
    """While modules are imported: which variables they read, and what they print."""

    def __enter__(self):
        self._class = type(os.environ)
        os.environ.__class__ = _RecordedEnvironment
        self._outputs = [os.memfd_create("ddprun-output") for _ in range(2)]
        self._saved = [os.dup(fd) for fd in (1, 2)]
        for fd, file in zip((1, 2), self._outputs):
            os.dup2(file, fd)
        return self

    def __exit__(self, *_):
        os.environ.__class__ = self._class
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for fd, saved in zip((1, 2), self._saved):
            os.dup2(saved, fd)
            os.close(saved)
        self.printed = [os.pread(file, os.fstat(file).st_size, 0) for file in self._outputs]
        for file in self._outputs:
            os.close(file)


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


# ---- what was imported

class _Preloaded:
    """The modules that the zygote has imported, and what they depend on. First on sys.meta_path of a standby."""

    def __init__(self):
        self._at_first = set(sys.modules)
        self._path = list(sys.path)
        self._environment = dict(os.environ)  # before anything was read
        self._hidden = {}
        self._files = {}
        self._outputs = []  # of each load(): what was printed to stdout and to stderr
        self.left_out = []
        # A standby keeps these as long as it may have to start anew: the socket to the agent, and the archive with the hooks.
        self.agent = self.hooks = None

    def load(self, names):
        """May be called again, with more names, where all are hidden."""
        if self in sys.meta_path:
            self._unhide()
        with _Recording() as recording:
            for name in names:
                self._load_one(name, is_needed=name == names[0])
        self._outputs.append(recording.printed)
        new = {name: module for name, module in sys.modules.items() if name not in self._at_first}
        self._hidden = {name: module for name, module in new.items() if _top(name) not in sys.stdlib_module_names}
        # Made here: to look at each module's name costs a standby the memory that it shares, page by page.
        self._tops = {_top(name) for name in self._hidden}
        self._tops_in_all = {_top(name) for name in new}
        for name, module in self._hidden.items():
            if "." in name:
                continue
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if origin and os.path.isabs(origin):
                self._files[origin] = self._stamp(origin)
        if hidden := self.hidden_by_program():
            raise _Unfit("", f"the program's folder has a module {hidden} of its own")

    def _load_one(self, name, is_needed):
        import importlib
        is_named, name = not name.startswith("?"), name.lstrip("?")
        if name in sys.modules:
            return
        before = set(_reads)
        try:
            importlib.import_module(name)
        except ImportError as error:
            why = f"{name} cannot be imported: {error}"
            if is_needed:
                raise _Unfit(name, why) from None
            if is_named:
                self.left_out.append(why)
        except BaseException as error:
            raise _Unfit(name, f"the import of {name} ends with {type(error).__name__}: {error}") from None
        read = (_reads - before) & _OF_A_WORKER
        if read:
            raise _Unfit(name, f"{name} reads {min(read)} while it is imported")

    @staticmethod
    def _stamp(path):
        try:
            about = os.stat(path)
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns, about.st_size

    def hidden_by_program(self):
        """A module of the program's folder that it would get instead of one of these."""
        folder = _folder_of_program()
        return folder and _hides_one_of(folder, self._tops_in_all)

    def hide(self):
        for name in self._hidden:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def _unhide(self):
        sys.meta_path.remove(self)
        sys.modules.update(self._hidden)

    # As a finder: the program imports something that is not there.
    def find_spec(self, name, path=None, target=None):
        if name not in self._hidden:
            return None
        if why := self._why_not():
            start_anew(self.agent, self.hooks, why)
        self._show()
        # Were it there when this returns, the import system would take its own specification, and load it again.
        del sys.modules[name]
        from importlib.machinery import ModuleSpec
        spec = ModuleSpec(name, self)
        if original := getattr(self._hidden[name], "__spec__", None):
            spec.origin, spec.has_location = original.origin, original.has_location
            spec.submodule_search_locations = original.submodule_search_locations
        return spec

    def _why_not(self):
        for name in sorted(_reads):
            if os.environ.get(name) != self._environment.get(name):
                return f"a module that is loaded in advance has read another value of {name}"
        for name in sorted(set(os.environ) | set(self._environment)):
            if name.startswith(_READ_IN_C) and os.environ.get(name) != self._environment.get(name):
                return f"the program sets {name}"
        for entry in sys.path:
            if entry in self._path:
                break
            if hidden := _hides_one_of(entry or os.getcwd(), self._tops):
                return f"{entry or os.getcwd()} has a module {hidden} of its own"
        for path, stamp in self._files.items():
            if self._stamp(path) != stamp:
                return f"{path} has changed"
        return None

    def _show(self):
        self._unhide()
        # Each process that imports these gets a seed of its own; without this all ranks would draw the same numbers.
        if "numpy.random" in self._hidden:
            self._hidden["numpy.random"].seed()
        if generator := getattr(self._hidden.get("torch"), "default_generator", None):
            generator.seed()
        for fd, printed in (pair for printed in self._outputs for pair in zip((1, 2), printed)):
            try:
                while printed:
                    printed = printed[os.write(fd, printed):]
            except OSError:
                pass  # the program has closed it
        for each in filter(None, (self.agent, self.hooks)):
            each.close()
        for install in [getattr(finder, "install_hooks", None) for finder in sys.meta_path]:
            if install:
                install(self._hidden)

    # As a loader: the module is there already, and so is its spec.
    def create_module(self, spec):
        module = self._hidden[spec.name]
        self._spec = getattr(module, "__spec__", None)
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec


def start_anew(agent, hooks, why):
    """Executes the program in this process as if there were no standbys."""
    import signal
    if agent.is_there():
        try:
            _Channel(agent.number).send(_ANEW, why)
        except OSError:
            pass
    environment = dict(os.environ)
    for finder in sys.meta_path:
        if hasattr(finder, "give_back"):
            finder.give_back(environment)
    path = environment.get("PYTHONPATH", "")
    if hooks is not None and hooks.is_there() and path.partition(":")[0] not in _hooks:
        os.set_inheritable(hooks.number, True)
        archive = f"/proc/self/fd/{hooks.number}"
        environment["PYTHONPATH"] = f"{archive}:{path}" if path else archive
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, which exec would keep
        signal.signal(number, signal.SIG_DFL)
    program = sys.orig_argv[0]
    os.execve(program if "/" in program else sys.executable, sys.orig_argv, environment)


# ---- checks: may this process be forked?

def _files_of_this_process():
    for name in os.listdir("/proc/self/fd"):
        try:
            yield int(name), os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass


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
        if target.startswith("/dev/nvidia"):
            return f"it opens a GPU ({target})"
        if target.startswith("socket:") and fd not in own_sockets:
            return "it opens a socket"
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
            _library()
            _load_in_place()
            self._preloaded.load(names)
            if why := _why_unfit(self._sockets):
                raise _Unfit("", why)
        except _Unfit as unfit:
            self._agent.send(_UNFIT, f"{unfit.name}\0{unfit}")
            os._exit(0)
        self._preloaded.hide()
        gc.collect()
        gc.freeze()  # a collection in a standby must not write into memory that all share
        self._agent.send(_READY, "\n".join(self._preloaded.left_out))

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
        _library().prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
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
        agent = self._preloaded.agent = agent.given_up()
        hooks = None
        if _hooks:
            # They close the number that they find on the path.
            hooks = self._preloaded.hooks = _OwnFile(os.dup(int(_hooks[0].rpartition("/")[2])))
        import atexit
        import gc
        atexit.register(gc.unfreeze)  # what is never collected, some extensions complain of at the end
        process = sys.modules.get("multiprocessing.process")
        if process is not None:
            process.current_process().authkey = os.urandom(32)
        if hidden := self._preloaded.hidden_by_program():
            start_anew(agent, hooks, f"the program's folder has a module {hidden} of its own")

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
        each = getattr(each, "__func__", each)
        if getattr(each, "__module__", None) == __name__ and hasattr(each, "__code__"):
            each.__code__ = _in_no_file(each.__code__)


_rename(globals())
_start()
_go_on()
