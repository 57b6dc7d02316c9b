"""Steps of programs that know nothing of ddprun: counts the calls of the optimizer that steps first. And the beginning
of their record of collectives (collectives.py).

ddprun brings this file into every Python program that it starts (agent/python/sitecustomize.py), unless
DDPRUN_PYTHON_HOOKS=0. It is run when torch is imported, and opens the link to the agent at the first step. Of a program
that reports its steps by itself (ddprun.progress) only the ends of steps are told. Nothing that goes wrong here reaches
the program: one line on stderr, and there are no more steps.
"""

import importlib
import itertools
import os
import sys
import weakref

nccl_plugin = globals().get("nccl_plugin")  # the library's content, or None
import_times = globals().get("import_times")  # the object of agent/python/sitecustomize.py, or None
_STATES_MAX = 16  # of parameters, to look at for the number of the step


def _number_of(step):
    if getattr(step, "is_cuda", False):
        # Reading it waits for the GPU, which ends the capture of a graph.
        return None if sys.modules["torch"].cuda.is_current_stream_capturing() else int(step)
    return int(step) if getattr(step, "is_cpu", True) else None


def _step_in(state):
    """The number of the step that the optimizer's state has; None: it has none."""
    of_parameters = itertools.islice(state.values(), _STATES_MAX)
    steps = [_number_of(each["step"]) for each in of_parameters if isinstance(each, dict) and "step" in each]
    return max((step for step in steps if step is not None), default=None)


def tell_imports():
    """How long this process's imports took, once, at the first step."""
    global import_times
    times, import_times = import_times, None
    if times:
        times.tell()


def make_hook(progress):
    """A hook of all optimizers; `progress` returns the module ddprun.progress.

    PyTorch walks through its hooks while it calls one, so this one stays where it is, and does less.
    """
    def nobody():
        return None

    def everybody_else():
        return progress

    first, count = nobody, None  # the optimizer that steps first, and what its next step does
    link = None

    def hook(optimizer, args, kwargs):
        try:
            if first() is optimizer:
                count()
            elif first() is None:
                begin(optimizer)
        except Exception as error:
            stop()
            complain(error)

    def stop():
        nonlocal first, count
        first, count = everybody_else, None
        if link:
            link.end_no_steps()

    def begin(optimizer):
        nonlocal first, count, link
        if "DDPRUN_PREPARED" in os.environ:  # a standby, which trains nobody's model
            return
        tell_imports()
        if count is not None:  # the first one is gone, and this one goes on
            first = weakref.ref(optimizer)
            return count()
        module = progress()
        link = module.link_of_process() or link_of_program()
        if not link:
            return stop()
        link.begin_steps_by_hook()
        # Where the worker before this one has reported by itself, this one will.
        if link.is_reported or link.wanted_kind == module.PROGRAM:
            leave_numbers_to_program()
        else:
            link.at_first_report = leave_numbers_to_program
            count = lambda: look_at_first(link, module)
        first = weakref.ref(optimizer)
        count()

    def leave_numbers_to_program():
        nonlocal count
        count = link.end_step

    def link_of_program():
        """The one that the program's copy of ddprun.progress has opened before."""
        its = getattr(sys.modules.get("ddprun.progress"), "_link", None)
        return its if hasattr(its, "begin_steps_by_hook") else None

    def look_at_first(link, module):
        nonlocal count
        in_state = _step_in(first().state)
        noted = link.counter(*(module.COUNTED, 0) if in_state is None else (module.OPTIMIZER, in_state - 1))
        step = noted()
        count = lambda: look_at_second(link, module, noted, step + 1)

    # Some libraries make an empty step before they load a checkpoint.
    def look_at_second(link, module, noted, expected):
        nonlocal count
        in_state = _step_in(first().state)
        count = noted if in_state in (None, expected) else link.counter(module.OPTIMIZER, in_state - 1)
        count()

    # A forked process is a worker only if it finds a link of its own.
    def begin_anew():
        global import_times
        import_times = None
        nonlocal first, count, link
        first, count, link = nobody, None, None

    os.register_at_fork(after_in_child=begin_anew)
    hook._torchdynamo_disable = True  # torch.compile calls it and does not look inside
    return hook


def load_progress(load):
    """The hooks' copy of ddprun.progress, under a name of its own; where it is loaded, the program's copy asks it for the
    link."""
    if "_ddprun_progress" not in sys.modules:
        sys.modules["_ddprun_progress"] = load("progress")
    return sys.modules["_ddprun_progress"]


def install(optimizers, load):
    """Into the module torch.optim.optimizer. `load("progress")` returns ddprun.progress as another module."""
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)  # since PyTorch 2.1
    if register is not None:
        register(make_hook(lambda: load_progress(load)))


def offer_nccl_plugin():
    """NCCL loads it with the first communicator, and it writes NCCL's calls in the record (worker_lib/nccl_profiler)."""
    if nccl_plugin is None or "NCCL_PROFILER_PLUGIN" in os.environ:
        return
    import ctypes
    library = os.memfd_create("ddprun-nccl-plugin")
    # A path that no other library is loaded by: dlopen() gives NCCL what has it, and opens nothing. So no descriptor is left
    # that the program could close, and another file could have the number of.
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/fd/{library}"
    try:
        os.write(library, nccl_plugin)
        ctypes.CDLL(path)
    except OSError:
        return  # NCCL's calls are not in the record
    finally:
        os.close(library)
    os.environ["NCCL_PROFILER_PLUGIN"] = path


def install_record(c10d, load):
    """Into the module torch.distributed.distributed_c10d: groups.py where workers are replaced in place, and collectives.py
    with the first process groups."""
    if "DDPRUN_REPLACES" in os.environ:
        groups = sys.modules["_ddprun_groups"] = load("groups")
        groups.install(c10d)
        progress = load_progress(load)  # before ddprun.recoverable() asks for the link, so that steps are told over the same one
        if "DDPRUN_STANDBY_GPU" in os.environ:
            load("standby_gpu").install(importlib.import_module("torch.cuda"), progress)
    offer_nccl_plugin()
    make, collectives, noted = c10d._new_process_group_helper, None, None

    def make_noted(size, rank, ranks, backend, store, name, *args, **kwargs):
        nonlocal collectives, noted
        try:
            if collectives is None:
                collectives = load("collectives")
                noted = collectives.begin(c10d)
            making = noted and collectives.Making(noted, size, rank, name)
        except Exception as error:
            making = None
            complain(error, "collectives")
        if making is None:
            c10d._new_process_group_helper = make
            return make(size, rank, ranks, backend, store, name, *args, **kwargs)
        with making:
            return make(size, rank, ranks, backend, store, name, *args, **kwargs)

    make_noted.__wrapped__ = make
    c10d._new_process_group_helper = make_noted


def install_safely(module, load):
    is_of_steps = module.__name__ == "torch.optim.optimizer"
    try:
        install(module, load) if is_of_steps else install_record(module, load)
    except Exception as error:
        complain(error, "steps" if is_of_steps else "collectives")


def find_spec(name, path, target, load):
    """What the other finders find, with a loader that installs the hook."""
    for finder in sys.meta_path:
        if hasattr(finder, "hooks_for"):  # which asks here
            continue
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            try:
                _extend(spec.loader, load)
            except Exception as error:
                complain(error, "steps and collectives")
            return spec
    return None


def _extend(loader, load):
    execute = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        execute(module)
        install_safely(module, load)
    loader.exec_module = exec_module


def complain(error, what="steps"):
    try:
        print(f"ddprun: the {what} of this worker are not shown: {type(error).__name__}: {error}", file=sys.stderr)
    except Exception:
        pass
