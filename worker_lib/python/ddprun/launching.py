"""ddprun.launch(): a function is called in workers that the program ddprun starts.

The caller writes what is to be called into a folder that only its user can enter. Each worker (ddprun.launched) reads it there, and
writes beside it what its function has returned or raised. Which of these counts, the events of ddprun say.
"""
import contextlib
import json
import multiprocessing.spawn
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import types

from ddprun import LaunchError, debugging, program

CALL, CALLER, RESULT, ERROR = "call", "caller", "result", "error"  # files in the folder
_EVENTS, WORDS = "events", "words"  # what ddprun tells
# These say how a program is run, and its arguments; the command line that is made here says all of that.
_OF_PROGRAMS = ("module", "no_python", "run_path", "local_rank_arg")
_VARIABLES_OF_PROGRAMS = {prefix + name.upper() for prefix in ("DDPRUN_", "PET_") for name in _OF_PROGRAMS}
is_importing_main = False  # in a worker, while it imports the caller's script

# Executes ddprun when the caller has written a byte; not if the caller was interrupted before, or is gone. ddprun gets SIGTERM when the
# caller's thread ends, whatever ends it. Signals that Python ignores are not ignored in workers. A notice that has come already stays
# blocked for ddprun, which takes it then.
_START = """
import ctypes, os, signal, sys
caller, go = map(int, sys.argv[1:3])
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if not os.read(go, 1) or os.getppid() != caller:
    sys.exit(1)
os.close(go)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGUSR2} - signal.sigpending())
os.execv(sys.argv[3], sys.argv[3:])
"""


def file_of(folder, kind, round, rank):
    return os.path.join(folder, f"{kind}-{round}-{rank}")


# ---- what is sent

def dump(value, path, pickler=pickle.Pickler):
    """Writes `value` into a file, straight from its own memory where it is large. What pickle cannot write by name (a lambda), cloudpickle
    writes by value. Returns the pickler; None: it was cloudpickle."""
    try:
        with open(path, "wb") as file:
            used = pickler(file, 5)
            used.dump(value)
            return used
    except OSError:
        raise
    except Exception as error:  # pickle raises several types, and those of __reduce__()
        why = error
    try:
        import cloudpickle
    except ImportError:
        raise pickle.PicklingError(f"{_text_of(why)} (a lambda, a function in a function and one of a notebook's cell need the package "
                                   "cloudpickle, which is not installed)") from why
    try:
        with open(path, "wb") as file:
            cloudpickle.dump(value, file, 5)
    except OSError:
        raise
    except Exception as error:
        raise pickle.PicklingError(_text_of(error)) from error


def _text_of(error):
    return str(error) or type(error).__name__


class _Pickler(pickle.Pickler):
    """Notes whether anything is of the caller's script, and refuses what a worker would not find there: what was typed."""

    needs_main = False

    def reducer_override(self, value):
        if isinstance(value, (type, types.FunctionType)) and value.__module__ in ("__main__", "__mp_main__"):
            is_typed = isinstance(value, types.FunctionType) and not os.path.isfile(value.__code__.co_filename)
            if is_typed or not _can_import_main():
                raise pickle.PicklingError(f"{value.__qualname__} is not in a file that workers could import")
            self.needs_main = True
        return NotImplemented


def _can_import_main():
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return name.rpartition(".")[2] != "__main__"  # multiprocessing does not import these either
    return os.path.isfile(getattr(main, "__file__", None) or "")


def _send(folder, f, args, kwargs, environment):
    try:
        pickler = dump((f, tuple(args), dict(kwargs)), os.path.join(folder, CALL), _Pickler)
    except pickle.PicklingError as error:
        raise pickle.PicklingError(f"launch() cannot send {getattr(f, '__qualname__', f)} and its arguments to workers: {error}") from None
    caller = multiprocessing.spawn.get_preparation_data("")
    # cloudpickle sends what is of a script by value, but where the script itself was imported in a worker.
    needs_main = pickler.needs_main if pickler else sys.modules["__main__"].__name__ == "__mp_main__"
    main = () if needs_main else ("init_main_from_name", "init_main_from_path")
    for each in ("name", "authkey", "start_method", *main):  # for processes that multiprocessing starts
        caller.pop(each, None)
    names = environment.keys() | _VARIABLES_OF_PROGRAMS
    changed = {name: os.environ.get(name) for name in names if os.environ.get(name) != environment.get(name)}
    with open(os.path.join(folder, CALLER), "wb") as file:
        pickle.dump((caller, changed), file)


# ---- ddprun

def _options(options):
    """On the command line. A list is joined as ddprun reads it."""
    line = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, dict):
            between = ":" if name in ("redirects", "tee") else "="
            value = [f"{key}{between}{each}" for key, each in value.items()]
        if isinstance(value, (list, tuple)):
            has_commas = name.startswith("duplicate_")
            value = ",".join(str(each).replace(",", ",,") if has_commas else str(each) for each in value)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if value is True:
            line.append(option)
        elif isinstance(value, (str, int, float)) and value is not False:
            line.append(f"{option}={value}")
        elif value is not None and value is not False:
            raise TypeError(f"launch() cannot give ddprun a {type(value).__name__} as {option}")
    return line


def _run(command, environment):
    """Returns ddprun's exit code when it has ended, and with it its workers. Also an interruption of this thread waits for that."""
    go, may_go = os.pipe()
    process, notices = None, _notices()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, notices)
    try:
        # A session of its own: the terminal's signals reach the caller alone, which passes on each once.
        start = [sys.executable, "-ISc", _START, str(os.getpid()), str(go), *command]
        if "pydevd" in sys.modules:  # a debugger, which would follow into each Python that it sees
            start = ["/bin/sh", "-c", 'exec "$@"', "sh", *start]
        process = subprocess.Popen(start, env=environment, start_new_session=True, pass_fds=(go,))
        for each in notices:
            signal.signal(each, lambda number, _: process.send_signal(number))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.write(may_go, b".")
        _await(process)
    except BaseException as error:
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else getattr(error, "sigval", signal.SIGTERM)
        while process is not None:
            try:
                process.send_signal(number)
                _await(process)
                break
            except BaseException:
                number = signal.SIGTERM  # a second signal has ddprun kill its workers; SIGINT again counts only after a second
        raise
    finally:
        for each in notices:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(go)
        os.close(may_go)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _notices():
    """The signals for ddprun that the program does not handle: one may announce a preemption (--preempt-signal)."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in (signal.SIGUSR1, signal.SIGUSR2) if signal.getsignal(number) == signal.SIG_DFL]


def _await(process):
    """Popen.wait() would let a KeyboardInterrupt wait for a quarter of a second, in which the process would end by itself."""
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # its end was taken by the caller's own code
        pass


class _Told:
    """What ddprun has told of the job: its events and its last words."""

    def __init__(self, events, words):
        self.has_begun, self.finished, self.round, self.ranks, self.replaced_at = False, {}, 0, [], 0.0
        for line in events.split("\n")[:-1]:  # a ddprun that was killed may have written half of the last
            event = json.loads(line)
            if event["event"] == "job_started":
                self.has_begun = True
            elif event["event"] == "round_started":
                self.round, self.ranks = event["round"], sorted(worker["rank"] for worker in event["workers"])
            elif event["event"] == "restarted" and event["how"] == "replaced":
                self.replaced_at = event["monotonic_us"] / 1e6
            elif event["event"] == "finished":
                self.finished = event
        self.words = words.strip().removeprefix("ddprun: ")

    @property
    def rank(self):
        """The worker that has ended first by a failure; None: none has."""
        return (self.finished.get("cause") or {}).get("rank")


def _error(words, code, rank=None, finished=None):
    error = LaunchError(words)
    error.exit_code, error.rank, error._finished = code, rank, finished
    return error


def inherited():
    """The environment of this process, for a ddprun whose command line says all about the program."""
    return {name: value for name, value in os.environ.items() if name not in _VARIABLES_OF_PROGRAMS}


def run_job(folder, path, options, command, environment):
    """Runs ddprun. Returns its exit code and what it has told; where it has started no workers that is an error."""
    its_events = options.get("events", os.environ.get("DDPRUN_EVENTS") or None)
    events, words = os.path.join(folder, _EVENTS), os.path.join(folder, WORDS)
    for each in (events, words):
        open(each, "w").close()
    with _also_into(its_events, events):
        code = _run([path, *_options({**options, "events": None}), f"--events={events}", *command], environment)
    with open(events, encoding="utf-8") as about, open(words, encoding="utf-8", errors="replace") as last:
        told = _Told(about.read(), last.read())
    code = told.finished.get("exit_code", code)
    if not told.has_begun and code == 2:
        raise ValueError(told.words or "ddprun refuses this job, and has said why on stderr")
    if not told.has_begun and code == 0:
        raise ValueError("ddprun has started no workers: an option of launch(), or a variable, says that it only prints something")
    return code, told


def launch(f, args, kwargs, nproc_per_node, options, path=None, variables=None):
    if is_importing_main:
        raise RuntimeError("launch() was called while a worker imports this script to find its functions; a script calls it below "
                           "`if __name__ == \"__main__\":`")
    if not callable(f):
        raise TypeError(f"launch() calls a function, and was given a {type(f).__name__}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args of launch() is a tuple or a list, as in args=({args!r},)")
    if not isinstance(kwargs, dict) or not all(isinstance(each, str) for each in kwargs):
        raise TypeError("kwargs of launch() is a dict of the function's keywords")
    if isinstance(nproc_per_node, bool) or not isinstance(nproc_per_node, (int, str)):
        raise TypeError("nproc_per_node of launch() is a number or a word, as 'gpu'")
    for name in _OF_PROGRAMS:
        if options.get(name):
            raise ValueError(f"launch() calls a function, for which there is no --{name.replace('_', '-')}")
    path = path or program.find()
    options = {"nproc_per_node": nproc_per_node, **options}
    _options(options)  # a wrong one before anything is made
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as folder:
        # The interpreter that has pickled. A failure that the caller may handle is none of an outer launcher's or of Kubernetes.
        environment = {**(inherited() if variables is None else variables), "PYTHON_EXEC": "",
                       "DDPRUN_CALLERS_PYTHON": debugging.python(folder) or sys.executable,
                       "DDPRUN_TERMINATION_LOG": os.path.join(folder, WORDS)}
        environment.pop("TORCHELASTIC_ERROR_FILE", None)
        _send(folder, f, args, kwargs, environment)
        code, told = run_job(folder, path, options, ["-m", "ddprun.launched", folder], environment)
        if code != 0:
            raise _failure(folder, code, told)
        return {rank: _result(folder, told.round, rank) for rank in told.ranks}


@contextlib.contextmanager
def _also_into(target, events):
    """`events` of launch(), which is what --events takes: the job's events are appended there when it has ended."""
    target = "fd:1" if target == "-" else str(target or os.devnull)
    is_descriptor = target.startswith("fd:") and target[3:].isdecimal()
    with open(int(target[3:]) if is_descriptor else target, "ab", closefd=not is_descriptor) as file:
        try:
            yield
        finally:
            with open(events, "rb") as told:
                file.write(told.read())


def _result(folder, round, rank):
    path = file_of(folder, RESULT, round, rank)
    try:
        with open(path, "rb") as file:
            result = pickle.load(file)
    except FileNotFoundError:
        raise _error(f"rank {rank} has ended with exit code 0 before its function returned", 0, rank) from None
    except Exception as error:
        raise _error(f"what rank {rank} returned cannot be unpickled: {type(error).__name__}: {error}", 0, rank) from error
    os.unlink(path)  # the next one may need its room
    return result


def _failure(folder, code, told):
    noted = {}
    for each in told.ranks:
        # A rank may have been killed before it had written all of it.
        with contextlib.suppress(FileNotFoundError, EOFError, pickle.UnpicklingError):
            with open(file_of(folder, ERROR, told.round, each), "rb") as file:
                noted[each] = pickle.load(file)
    if told.rank not in noted:  # it was killed, say, or is of another node
        how = f"was killed by signal {code - 128}" if code > 128 else f"has ended with exit code {code}; it has said why on stderr"
        return _error(told.words or f"ddprun {how}", code, told.rank, told.finished)
    # ddprun knows which rank has ended first. Where an exception breaks a call of several ranks, the others may end before the one that
    # has raised it. What a rank has noted that was replaced since then is over.
    rank = min(noted, key=lambda each: (each != told.rank and noted[each][0] < told.replaced_at, noted[each][0]))
    _, text, pickled = noted[rank]
    where = _error(f"rank {rank} failed first:\n\n{text}", code, rank, told.finished)
    try:
        error = pickle.loads(pickled)
    except Exception:
        return where
    if not isinstance(error, Exception):  # a SystemExit would end the caller
        return where
    error.__cause__ = where
    return error
