"""For Python programs that ddprun starts; none needs it. `ddprun.progress` tells how far a worker is; `ddprun.recoverable` lets
ranks that die be replaced while the others go on; `ddprun.keep` keeps a training's state in memory that outlives all ranks;
`ddprun.should_leave` says when all ranks are to save and leave, because the job is preempted.

`ddprun.launch` is for programs that ddprun has not started: it calls a function in workers. `python -m ddprun` is the program ddprun.

Steps of PyTorch's optimizers are told without it: ddprun brings the hooks of this package into every Python program that
it starts (`ddprun.hooks`), unless DDPRUN_PYTHON_HOOKS=0.
"""

import os
import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without the import
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence
    import torch as _torch
    from ddprun.keeping import Kept
    from ddprun.training import Training

__version__ = "0.1.0"  # as CMakeLists.txt has it for ddprun
# The modules that a program may use; all but the first import PyTorch, the last three the framework of their name.
_ON_DEMAND = ("progress", "torch", "training", "accelerate", "lightning", "transformers")


def __getattr__(name):
    why = ""
    if name in _ON_DEMAND:
        import importlib
        try:
            return importlib.import_module("ddprun." + name)
        except ImportError as error:
            why = f": {error}"
    raise AttributeError(f"module 'ddprun' has no attribute '{name}'{why}")


def __dir__():
    return sorted({*globals(), *_ON_DEMAND})


def recoverable(model: "_torch.nn.Module | Sequence[_torch.nn.Module]", optimizer: "Any", *, parts: "Mapping[str, Any]" = {},
                per_rank: "Mapping[str, Any]" = {}, unchanged: "Sequence[Any]" = (), memory_every: int = 0,
                on_leave: "Callable[[], Any] | None" = None, **more_parts: "Any") -> "Training":
    """Returns a ddprun.training.Training, whose loop survives the death of a rank: the rank is replaced, the others go on.

        training = ddprun.recoverable(ddp, optimizer, scheduler=scheduler)
        for epoch in training.epochs(10):
            sampler.set_epoch(epoch)
            for step in training.steps(loader):
                with step as (inputs, targets):
                    optimizer.zero_grad()
                    loss = loss_of(ddp(inputs), targets)
                    loss.backward()
                    optimizer.step()
                    scheduler.step()
                if step.committed:
                    print(step.number, loss.item())

    Call it when all is set up, right before the loop, on all ranks, in the main thread. Without ddprun, under torchrun, on one
    process, or where ddprun replaces no workers, the loop is the plain one.

    `model` is a DistributedDataParallel over Gloo or NCCL, or a sequence of several. `optimizer` is a torch.optim.Optimizer, or a
    sequence; together they have all parameters that are trained; each may be in the wrapper of a framework (Accelerate, Lightning).

    `parts` has by name what is equal on all ranks and has a state_dict() and a load_state_dict(): schedulers, a GradScaler,
    averages of the weights; also lists of such objects. Any other keyword is a part, too (scheduler=scheduler). `per_rank` has by
    name what each rank has its own of; also a torch.Generator, random.Random or numpy.random.Generator. It is noted in each step,
    and so should be small. `unchanged` are objects with a state that training leaves as the set-up has made them (a teacher), or
    that a new process may have in another state (a log).

    With `memory_every=K` the state is kept in memory of the agent every K steps (see ddprun.keep()): when all ranks have died,
    the loops go on from there.

    When the job is preempted, every rank calls `on_leave` behind the same step, and then ends by SystemExit: what follows the
    loop does not run. It saves, with training.position where the training goes on from there. Without `on_leave` the loop goes on;
    should_leave() in it is for a program that leaves by itself.

    Objects with a state in the functions around the loop that were not given are looked for at the first steps; if there is
    one, or if something cannot be made again, ddprun says so in one line, and restarts all ranks when one dies. After a
    replacement the ranks are compared before the next step is committed; if they differ, all begin anew, and a line names what.

    Raises TypeError for a part without the two methods, and for a reserved name; CannotRecover, a RuntimeError, out of a step
    when all ranks have to begin anew.
    """
    from ddprun import training
    return training.make(model, optimizer, parts, per_rank, unchanged, memory_every, on_leave, more_parts)


def should_leave() -> bool:
    """Whether the job is preempted, and all ranks are to save and leave now. It becomes true on all ranks of all nodes at the same
    call, and stays true:

        for step, batch in enumerate(loader):
            ...
            if ddprun.should_leave():
                save(step)
                sys.exit()

    Every rank calls it equally often: once after each step. When it has been true and all ranks have ended with 0, the exit code
    of ddprun is 113, which asks for a requeue. In a loop of recoverable() the calls are not counted, but the steps that were committed.

    A preemption is announced by the signal of --preempt-signal (SIGUSR1 under Slurm) or --preempt-notice, on any node. Most calls take less
    than a microsecond; at a preemption one waits some milliseconds for the agents. The ranks do not call each other. Without
    ddprun it is always false. The main thread calls.
    """
    return _ask_whether_to_leave()


def _ask_whether_to_leave():
    global _ask_whether_to_leave
    if "DDPRUN_LINK_FD" in os.environ:
        from ddprun import leaving
        _ask_whether_to_leave = leaving.should_leave
    else:
        _ask_whether_to_leave = bool
    return _ask_whether_to_leave()


def keep(step: int, *, model: "_torch.nn.Module | Sequence | Mapping | None" = None,
         optimizer: "_torch.optim.Optimizer | Sequence | Mapping | None" = None,
         per_rank: "Any" = None, replicated: "Any" = None) -> None:
    """Keeps what the training needs to go on after `step` in memory of the agent, until a later one is whole:

        kept = ddprun.kept()                     # None: begin anew, or from the disk
        if kept:
            model.load_state_dict(kept.model)
            optimizer.load_state_dict(kept.optimizer)
            torch.set_rng_state(kept.per_rank)
        for step in range(kept.step + 1 if kept else 0, steps):
            ...
            if step % 5 == 0:
                ddprun.keep(step, model=model, optimizer=optimizer, per_rank=torch.get_rng_state())

    Every rank calls it, after the same steps, which never become smaller during the whole training. Of several calls at one step the last
    one that all ranks have made counts.

    `model` is a module, or a list, tuple or dict of modules (also in DistributedDataParallel or torch.compile). Parameters are equal
    on all ranks, and each rank of a node writes a share; what its state_dict() has besides (buffers) is each rank's own.
    `optimizer` is an optimizer, or a list, tuple or dict of them, whose state is equal on all ranks.
    `replicated` is anything else that is equal on all ranks, as torch.save() takes it: state_dict() of a scheduler, a GradScaler, an
    average of the weights. `per_rank` is anything that this rank has for itself: random numbers, its place in the data, and
    all state of a model or optimizer that is sharded (FSDP, ZeroRedundancyOptimizer, DTensor). Tensors are copied once.

    The first call in each process waits for that of all ranks, and compares all that is equal on all ranks. From then on no rank waits,
    and each compares one share of another rank in each snapshot: one line on stderr names two ranks that differ, their snapshot
    is not used, and the one before it stays. The main thread calls.

    Raises TypeError, also without ddprun, for a tensor of a subclass (DTensor) in what is equal on all ranks, for a
    FullyShardedDataParallel or ZeroRedundancyOptimizer as `model` or `optimizer`, and for an object in place of its state.
    Raises ValueError for a step that is smaller than the one before; and on all ranks, at the first call, if steps or values differ,
    with the name of the first value and the ranks. Raises RuntimeError if a rank does not call it within half an hour, or if it is
    called before init_process_group() in a job without a store of ddprun's. Raises what pickle raises for an object that it does not take.

    Keeps nothing without ddprun, under another launcher, where no restart can follow, and in a standby. Where the library or the
    room is missing, on one rank or all, or where more than 64 MiB of what is equal on all ranks are no plain tensors, one line on
    stderr says so, and the training goes on.
    """
    # Without ddprun and PyTorch there is nothing to refuse.
    if "DDPRUN_LINK_FD" in os.environ or "torch" in sys.modules:
        from ddprun import keeping
        keeping.keep(step, model, optimizer, per_rank, replicated)


def kept() -> "Kept | None":
    """The newest snapshot that is whole on all nodes, with its `step`, `model`, `optimizer`, `per_rank` and `replicated`: a frozen
    dataclass, whose fields are None where keep() was given nothing. None: there is no snapshot.

    `model` and `optimizer` have the form that keep() was given: what load_state_dict() of the same object takes, with this rank's
    buffers, or a list, tuple or dict. `per_rank` and `replicated` are as they were given. All tensors are on the CPU.

    Every rank calls it, as often as the others, before it calls keep(), in the main thread: they agree, and get the same step. It is
    None if a rank's part is not there: on a node that is new, or, if anything was each rank's own (per_rank, a model with
    buffers), if the number of ranks is another or a rank is on another node than then.

    Raises RuntimeError if a rank does not call it within half an hour, or if it is called before init_process_group() in a job
    without a store of ddprun's.
    """
    if "DDPRUN_LINK_FD" not in os.environ:
        return None
    from ddprun import keeping
    return keeping.kept()


class LaunchError(RuntimeError):
    """A job of launch() has failed. `exit_code` is that of ddprun; `rank` is that of the worker that failed first, None if none did."""

    exit_code: int = 0
    rank: "int | None" = None
    _finished = None  # the last event of the job


def launch(f: "Callable[..., Any]", args: "Sequence[Any]" = (), kwargs: "Mapping[str, Any]" = {}, *, nproc_per_node: "int | str",
           **options: "Any") -> "dict[int, Any]":
    """Calls f(*args, **kwargs) in workers that ddprun starts, and returns what each has returned, by rank: of this node's ranks, after a
    restart of those of the last round.

        if __name__ == "__main__":
            results = ddprun.launch(train, (0.1,), {"epochs": 3}, nproc_per_node=2, max_restarts=1)
            print(results[0])

    `options` are those of ddprun by their long names: `log_dir="logs"`, `standalone=True`, `local_ranks_filter=[0, 1]`,
    `rdzv_conf={"join_timeout": 60}`; None and False give none. Variables (DDPRUN_MAX_RESTARTS) count as on the command line. With
    `nnodes` every node calls launch(). `events` gets the job's events when it has ended.

    The caller's process is not forked: its threads, and what it has on GPUs, do not matter. A worker has its sys.path, sys.argv,
    environment and folder, and the variables of torchrun. A function of a module is imported there, and one of a script as multiprocessing
    does it: the script is imported under the name `__mp_main__`. A lambda, a function in a function, and one that was typed (a
    notebook's cell) are sent by value, which needs the package cloudpickle. stdout and stderr are those of this process (file
    descriptors 1 and 2).

    What is sent and returned goes through files of tempfile.gettempdir() that only this user can read, and is in memory once on each side,
    with one more copy while a worker writes a NumPy array, and two more for a tensor. They are removed at the end. A worker that
    ends itself with sys.exit() returns None.

    Raises what the rank raised that failed first, with a LaunchError as its cause that has the traceback. Raises LaunchError if it died
    otherwise (a signal, sys.exit(3)), if its exception or a result cannot be unpickled here, and if the job was stopped or preempted.
    Raises TypeError and ValueError for wrong arguments and options, pickle.PicklingError for what cannot be sent, FileNotFoundError
    if the program ddprun is not there, RuntimeError in a script that calls launch() without the condition above. With KeyboardInterrupt the
    workers get SIGINT, with a second one SIGKILL; it is raised when they have ended. Also the death of the caller ends them. SIGUSR1 and
    SIGUSR2, by which a preemption may be announced, are passed on to ddprun, unless the program handles them itself.

    Any thread may call, also several at once; then Ctrl-C reaches the main thread alone, and SIGUSR1 is not passed on.
    """
    from ddprun import launching
    return launching.launch(f, args, kwargs, nproc_per_node, options)
