"""Brings ddprun's hooks into a Python program (agent/README.md, "Hooks for Python").

The agent puts the archive that holds this file first on PYTHONPATH. Python imports it before it looks at the program,
and it goes on to the user's own sitecustomize, as if it had never been there. Every start of a Python program pays for
what stands here, which zipimport compiles twice; the rest is in hooks.py, for programs with PyTorch.
"""
import os
import sys


class _OwnFile:
    """A descriptor of ddprun's own. The program may close all that it finds, and open files that get their numbers, so each
    use asks whether the number is still that file's."""

    def __init__(self, number):
        os.set_inheritable(number, False)
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

    def write(self, text):
        """False: it is not there any more, or there is no room."""
        try:
            while text and self.is_there():
                text = text[os.write(self.number, text):]
        except OSError:
            pass
        return not text

    def close(self):
        if self.is_there():
            os.close(self.number)


class _Hooks:
    """A finder: all imports but three pay for a look-up and a comparison."""

    def __init__(self, folder):
        replaces = "DDPRUN_REPLACES" in os.environ
        names = ("hooks", "progress", "collectives", *(("groups", "standby_gpu") if replaces else ()))
        self.texts = {name: __loader__.get_data(f"{folder}/package/ddprun/{name}.py") for name in names}
        self.in_place = __loader__.get_data(folder + "/libddprun_in_place.so") if replaces else None
        self.in_place_error = None
        wants_nccl = os.environ.pop("DDPRUN_NCCL_RECORD", None) is not None
        self.nccl_plugin = __loader__.get_data(folder + "/libddprun_nccl_profiler.so") if wants_nccl else None
        imports = _own_descriptor("DDPRUN_IMPORTS_FD", "/memfd:ddprun-imports")
        self.import_times = imports and _ImportTimes(imports)
        self.hooks = None
        self.wanted = {"torch.optim.optimizer", "torch.distributed.distributed_c10d"}

    def find_spec(self, name, path=None, target=None):
        if name in self.wanted:
            return self.hooks_for(name).find_spec(name, path, target, self.load)
        if name == "torch" and self.in_place is not None:
            self.load_in_place()

    def load_in_place(self):
        """What replacement in place needs in C (worker_lib/in_place/in_place.h); it has to be there before PyTorch."""
        import ctypes
        library, content, self.in_place = os.memfd_create("ddprun-in-place"), self.in_place, None
        try:
            os.write(library, content)
            ctypes.CDLL(f"/proc/self/fd/{library}", ctypes.RTLD_GLOBAL)
        except OSError as error:
            self.in_place_error = str(error)  # recovery.py says it
        finally:
            os.close(library)

    def install_hooks(self, modules):
        """Installs the hooks where the modules are loaded already (a standby: agent/standby)."""
        for name in [name for name in self.wanted if name in modules]:
            self.hooks_for(name).install_safely(modules[name], self.load)

    def give_back(self, environment):
        """What this process was started with, for a program that is to be executed anew in it."""
        if self.nccl_plugin is not None:
            environment["DDPRUN_NCCL_RECORD"] = "1"
        if self.import_times and self.import_times.file.is_there():
            os.set_inheritable(self.import_times.file.number, True)
            environment["DDPRUN_IMPORTS_FD"] = str(self.import_times.file.number)

    def hooks_for(self, name):
        self.wanted.remove(name)
        if not self.wanted:
            sys.meta_path.remove(self)
        if self.hooks is None:
            self.hooks = self.load("hooks")
        return self.hooks

    def load(self, name):
        module = type(sys)("_ddprun_" + name)
        module.__file__ = f"<frozen importlib of ddprun>/{name}.py"  # torch.compile skips files that are called so
        module.import_times, module.nccl_plugin, module.in_place_error = self.import_times, self.nccl_plugin, self.in_place_error
        exec(compile(self.texts[name], module.__file__, "exec"), module.__dict__)
        return module


class _ImportTimes:
    """The first finder: notes how long the imports of packages take that the program makes, with all that these import."""

    def __init__(self, file):
        self.file, self.times, self.is_busy = file, {}, False
        # Its imports are those that were not loaded in advance, also of packages that were.
        self.is_in_standby = any(type(finder).__name__ == "_Preloaded" for finder in sys.meta_path)

    def find_spec(self, name, path=None, target=None):
        if self.is_busy or name.partition(".")[0] in sys.stdlib_module_names:
            return None
        self.is_busy = True
        try:
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path[sys.meta_path.index(self) + 1:])
            spec = next(filter(None, found), None)
        finally:
            self.is_busy = False
        # A module of the program's own folder cannot be loaded in advance, but what it imports can.
        if type(getattr(spec, "loader", None)).__module__ == "_frozen_importlib_external" and spec.has_location and (
                os.path.dirname(spec.origin) != sys.path[0]) and "exec_module" not in vars(spec.loader):
            self._note(name, spec.loader)
        return spec

    def _note(self, name, loader):
        from time import monotonic
        execute, begun = loader.exec_module, monotonic()

        def exec_module(module):
            del loader.exec_module
            is_inside, self.is_busy = self.is_busy, True
            try:
                execute(module)
            finally:
                self.is_busy = is_inside
                self.times[name] = monotonic() - begun
        loader.exec_module = exec_module

    def tell(self):
        """At the program's first step. The file has what the first worker of the round before has written."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        lines = ["standby\n"] if self.is_in_standby else []
        lines += [f"{name} {seconds * 1000:.0f}\n" for name, seconds in self.times.items() if seconds >= 0.05]
        if self.file.is_there():
            os.ftruncate(self.file.number, 0)
            os.lseek(self.file.number, 0, os.SEEK_SET)
        self.file.write(("".join(lines) + "\n\n").encode())
        self.file.close()


class _Package:
    """The last finder: ddprun's package, for a program that has none of its own."""

    def __init__(self, folder):
        # The archive as the agent has it open: no descriptor that the program might close, and one path for all processes.
        self.entry = f"/proc/{os.getppid()}/fd/{folder.rpartition('/')[2]}/package"

    def find_spec(self, name, path=None, target=None):
        if name != "ddprun":
            return None
        from importlib.machinery import PathFinder
        sys.meta_path.remove(self)
        sys.path.append(self.entry)  # multiprocessing gives it to the processes that it spawns
        return PathFinder.find_spec(name, [self.entry])


_STACK_SIGNAL, _ALL_STACKS_SIGNAL, _STACK_MEMORY = 50, 51, "ddprun-python-stacks"  # agent/process/python_stacks.h


def _show_stacks():
    """When a signal comes, faulthandler writes the stack of the main thread, or of all threads, where the agent finds them."""
    import _signal
    import faulthandler
    if any(_signal.getsignal(each) != _signal.SIG_DFL for each in (_STACK_SIGNAL, _ALL_STACKS_SIGNAL)):
        return
    memory = os.memfd_create(_STACK_MEMORY)
    # Whoever empties it does not know how far this process has written.
    stacks = os.open(f"/proc/self/fd/{memory}", os.O_WRONLY | os.O_APPEND)
    os.close(memory)
    faulthandler.register(_STACK_SIGNAL, file=stacks, all_threads=False)
    faulthandler.register(_ALL_STACKS_SIGNAL, file=stacks, all_threads=True)


def _say_that_there_is_a_record():
    """In the record of collectives (collectives.py, _THREADS_AT): until a group is made, it has nothing else."""
    text = os.environ.get("DDPRUN_LINK_RECORD_FD", "")
    if text.isdecimal():
        try:
            header = os.pread(int(text), 20, 0)
            if header[:8] == b"\0DDPRCRD" and header[16:] == os.getpid().to_bytes(4, sys.byteorder):
                os.pwrite(int(text), (1).to_bytes(4, sys.byteorder), 72)
        except OSError:
            pass


def _own_descriptor(variable, target):
    """The descriptor that this variable names, if it leads there; no child gets it, or the variable."""
    text = os.environ.pop(variable, "")
    try:
        if text.isdecimal() and os.readlink("/proc/self/fd/" + text).startswith(target):
            return _OwnFile(int(text))
    except OSError:
        pass
    return None


def _getter(archive):
    """The loader's get_data(), which would read from whatever has the archive's number."""
    get_data = __loader__.get_data

    def get(path):
        if not archive.is_there():
            raise OSError("the program has closed ddprun's archive")
        return get_data(path)
    return get


def _in_no_file(code):
    """For what runs later: coverage.py reports on files, and this one cannot be read."""
    parts = tuple(_in_no_file(each) if isinstance(each, type(code)) else each for each in code.co_consts)
    return code.replace(co_filename="<frozen importlib of ddprun>/sitecustomize.py", co_consts=parts)


def _leave(folder):
    """The interpreter, as if this file had never been there."""
    for each in (*vars(_OwnFile).values(), *vars(_Hooks).values(), *vars(_ImportTimes).values(), *vars(_Package).values(),
                 _getter):
        if hasattr(each, "__code__"):
            each.__code__ = _in_no_file(each.__code__)
    try:
        hooks = _Hooks(folder)
        sys.meta_path.insert(0, hooks)
        if hooks.import_times:
            sys.meta_path.insert(0, hooks.import_times)
        sys.meta_path.append(_Package(folder))
        _show_stacks()
        _say_that_there_is_a_record()
    except Exception as error:
        print(f"ddprun: not all of this worker is shown: {type(error).__name__}: {error}", file=sys.stderr)
    _, has_more, others = os.environ.pop("PYTHONPATH", "").partition(":")
    if has_more:
        os.environ["PYTHONPATH"] = others
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    archive = _OwnFile(int(folder.rpartition("/")[2]))
    if "DDPRUN_SNAPSHOT_FD" in os.environ:  # ddprun.keep() gets its library from there, when it is called
        sys.modules["_ddprun_archive"] = module = type(sys)("_ddprun_archive")
        module.get_data, module.folder = _getter(archive), folder
    else:
        archive.close()


_leave(__file__.rpartition("/")[0])
_own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # the user's own, if there is one
except BaseException as error:
    sys.modules["sitecustomize"] = _own  # whose failure this is to the import system, which removes it
    if isinstance(error, ModuleNotFoundError) and error.name == "sitecustomize":
        raise ImportError("no sitecustomize", name="sitecustomize") from None
    raise
