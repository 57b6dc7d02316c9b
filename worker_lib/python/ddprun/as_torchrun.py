"""ddprun in torchrun's place, where DDPRUN_AS_TORCHRUN says so: 1, or the path of the program ddprun.

torch calls install() at the end of its import (_torch_autoload.py). A process that is torchrun itself becomes ddprun. In any other one,
launch_agent() of torch.distributed.launcher.api, through which all that starts torchrun's agent goes, starts ddprun instead.
"""
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from importlib.machinery import PathFinder

_API = "torch.distributed.launcher.api"
_LEGACY = "torch.distributed.launch"
# What torchrun has if an option is not given is ddprun's default, too. It is not given to ddprun, so that DDPRUN_MAX_RESTARTS counts.
_DEFAULTS = {"role": "default", "run_id": "none", "max_restarts": 0, "monitor_interval": 0.1, "start_method": "spawn",
             "event_log_handler": "null", "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}
_DEFAULT_ENDPOINT, _DEFAULT_TIMEOUT_S = "127.0.0.1:29500", 900


def install():
    module = _own_module()
    if module is not None:
        from ddprun import __main__
        # Called by this name, it has torchrun's defaults.
        __main__.execute(_program(), ["torchrun", *(["--local-rank-arg"] if module == _LEGACY else []), *sys.argv[1:]])
    if _API in sys.modules:
        _replace(sys.modules[_API])
    elif not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _own_module():
    """The module of torchrun's that this process is about to run; None: it runs another program."""
    if sys.argv[0] == "-m":  # Python imports torch on the way to a module in it
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
        return module if module in ("torch.distributed.run", _LEGACY) else None
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    return "torch.distributed.run" if os.path.basename(script) == "torchrun" else None


def _program():
    named = os.environ["DDPRUN_AS_TORCHRUN"]
    if "/" in named:
        return named
    from ddprun import program
    return program.find()


class _Finder:
    """The first finder."""

    def find_spec(self, name, path=None, target=None):
        if name != _API:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                del spec.loader.exec_module
                execute(module)
                _replace(module)
            spec.loader.exec_module = exec_module
        return spec


def _replace(api):
    api.launch_agent = launch_agent
    package = sys.modules.get(_API.rpartition(".")[0])
    if hasattr(package, "launch_agent"):
        package.launch_agent = launch_agent


# ---- the agent

def launch_agent(config, entrypoint, args):
    """As torch.distributed.launcher.api.launch_agent(): returns what the functions of this node's ranks return."""
    from torch.distributed.launcher.api import _get_entrypoint_name
    options, variables = _options(config)
    name = _get_entrypoint_name(entrypoint, args)
    run = sys.modules.get("torch.distributed.run")
    with _signals_raised(config.signals_to_handle):
        if not callable(entrypoint):
            return _run_program(name, options, variables, *_command(entrypoint, args, variables))
        if entrypoint is getattr(run, "run_script_path", None):
            return _run_program(name, {**options, "run_path": True}, {**variables, "DDPRUN_CALLERS_PYTHON": sys.executable}, args)
        return _call(name, entrypoint, args, options, variables)


def _options(config):
    """The options of ddprun, and the environment that it has."""
    from ddprun import launching
    # torchrun has read these already, or is called as a library, which does not read them.
    variables = {name: value for name, value in launching.inherited().items() if not name.startswith("PET_")}
    if config.log_line_prefix_template is not None:
        variables["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = config.log_line_prefix_template
    options = {"nnodes": f"{config.min_nodes}:{config.max_nodes}", "nproc_per_node": config.nproc_per_node, **_of_logs(config.logs_specs),
               "local_addr": config.local_addr or None,
               "numa_binding": getattr(config.numa_options, "affinity_mode", None) and config.numa_options.affinity_mode.value,
               "duplicate_stdout_filters": config.duplicate_stdout_filters or None,
               "duplicate_stderr_filters": config.duplicate_stderr_filters or None,
               "virtual_local_rank": bool(getattr(config, "virtual_local_rank", False))}
    for name, default in _DEFAULTS.items():
        value = getattr(config, name)
        if value != default and value != "":
            options["rdzv_id" if name == "run_id" else name] = value
    options |= _of_rendezvous(config)
    return options, variables


def _of_logs(logs):
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    if type(logs) is not DefaultLogsSpecs:
        raise ValueError(f"ddprun in torchrun's place writes logs as torch's DefaultLogsSpecs does, and was given a {type(logs).__name__}")
    folder = logs.root_log_dir
    if os.path.dirname(folder) == tempfile.gettempdir() and os.path.basename(folder).startswith("torchelastic_"):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # made by torch where no folder is given, as ddprun makes one where it needs it
        folder = None

    def digits(of):
        return {rank: int(each) for rank, each in of.items()} if isinstance(of, dict) else int(of)
    options = {"log_dir": folder, "redirects": digits(logs._redirects), "tee": digits(logs._tee),
               "local_ranks_filter": sorted(logs._local_ranks_filter) if logs._local_ranks_filter else None}
    return {name: value for name, value in options.items() if value}


def _of_rendezvous(config):
    settings = dict(config.rdzv_configs)
    rank = settings.pop("rank", None)
    if settings.get("timeout") == _DEFAULT_TIMEOUT_S:
        del settings["timeout"]
    options = {"rdzv_backend": config.rdzv_backend, "rdzv_conf": settings or None}
    # On one node ddprun takes a free port where torchrun takes this one by default.
    is_default = config.rdzv_backend == "static" and config.max_nodes == 1 and config.rdzv_endpoint == _DEFAULT_ENDPOINT
    if config.rdzv_endpoint and not is_default:
        options["rdzv_endpoint"] = config.rdzv_endpoint
    if config.rdzv_backend == "static" and rank is not None:
        options["node_rank"] = int(rank)
    return options


def _command(entrypoint, args, variables):
    """The options for a program, and its words. `python -u script` gets what ddprun has for Python."""
    words = [str(each) for each in args]
    if entrypoint == (os.environ.get("PYTHON_EXEC") or sys.executable) and len(words) > 1 and words[0] == "-u":
        is_module = words[1] == "-m"
        if is_module or not words[1].startswith("-"):
            variables["DDPRUN_CALLERS_PYTHON"] = entrypoint
            return words[1 + is_module:], {"module": is_module}
    return [entrypoint, *words], {"no_python": True}


def _run_program(name, options, variables, words, more={}):
    from ddprun import debugging, launching
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as folder:
        if python := debugging.python(folder):
            variables.pop("PYTHON_EXEC", None)
            variables["DDPRUN_CALLERS_PYTHON"] = python
        # What a failed worker has written (torch's @record) is copied there.
        errors = variables.setdefault("TORCHELASTIC_ERROR_FILE", os.path.join(folder, "error.json"))
        code, told = launching.run_job(folder, _program(), {**options, **more}, ["--", *map(str, words)], variables)
        if not told.has_begun:
            raise RuntimeError(f"ddprun has started no workers, and has said why on stderr (exit code {code})")
        if code != 0:
            raise _failure(name, code, told.finished, errors, is_kept="TORCHELASTIC_ERROR_FILE" in os.environ)
    return dict.fromkeys(told.ranks)


def _call(name, function, args, options, variables):
    from ddprun import LaunchError, launching
    workers = options.pop("nproc_per_node")
    try:
        return launching.launch(function, tuple(args), {}, workers, options, _program(), variables)
    except Exception as error:
        its = error if isinstance(error, LaunchError) else error.__cause__
        if not isinstance(its, LaunchError) or its._finished is None:
            raise
        with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as folder:
            path = os.path.join(folder, "error.json")
            with open(path, "w") as file:  # as torch's @record writes it
                more = {"py_callstack": str(its), "timestamp": str(int(time.time()))}
                json.dump({"message": {"message": str(its), "extraInfo": more}}, file)
            raise _failure(name, its.exit_code, its._finished, path, is_kept=False) from error


def _failure(name, code, finished, errors, is_kept):
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    if finished.get("outcome") == "preempted":  # the code asks for a requeue
        return SystemExit(code)
    if finished.get("outcome") == "stopped":
        number = finished.get("signal")
        return SystemExit(code) if number is None else SignalException(f"ddprun got signal: {number}", signal.Signals(number))
    cause = finished.get("cause") or {}
    end = -cause["signal"] if cause.get("signal") else cause.get("exit_code") or code
    failure = ProcessFailure(cause.get("local_rank") or 0, cause.get("pid") or 0, end, errors)
    if not is_kept:
        failure.error_file = "<N/A>"  # its folder is removed
    return ChildFailedError(name, {cause.get("rank") or 0: failure})


@contextlib.contextmanager
def _signals_raised(names):
    """As torch's agent: these signals are a SignalException in the main thread. It is passed on to ddprun, which stops the workers."""
    from torch.distributed.elastic.multiprocessing.api import _terminate_process_handler
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in names.split(","):
            number = getattr(signal, name.strip(), None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # nohup
                before[number] = signal.signal(number, _terminate_process_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
