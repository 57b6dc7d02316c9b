"""For Python programs that ddprun starts; none needs it. `ddprun.progress` tells how far a worker is; `ddprun.recoverable` lets
ranks that die be replaced while the others go on; `ddprun.keep` keeps a training's state in memory that outlives all ranks.

Steps of PyTorch's optimizers are told without it: ddprun brings the hooks of this package into every Python program that
it starts (`ddprun.hooks`), unless DDPRUN_PYTHON_HOOKS=0.
"""

import os
import pkgutil

__version__ = "0.1.0"  # as CMakeLists.txt has it for ddprun
__path__ = pkgutil.extend_path(__path__, __name__)  # ddprun.torch is a distribution of its own, maybe in another folder
_ON_DEMAND = ("progress", "torch", "training")  # the modules that a program may use; the last two import PyTorch


def __getattr__(name):
    if name in _ON_DEMAND:
        import importlib
        try:
            return importlib.import_module("ddprun." + name)
        except ModuleNotFoundError as error:
            if error.name != "ddprun." + name:
                raise
    raise AttributeError(f"module 'ddprun' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *_ON_DEMAND})


def recoverable(model, optimizer, *, parts={}, per_rank={}, unchanged=(), memory_every=0, **more_parts):
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

    `model` is a DistributedDataParallel over Gloo, or a sequence of several. `optimizer` is a torch.optim.Optimizer, or a
    sequence; together they have all parameters that are trained; each may be in the wrapper of a framework (Accelerate, Lightning).

    `parts` has by name what is equal on all ranks and has a state_dict() and a load_state_dict(): schedulers, a GradScaler,
    averages of the weights; also lists of such objects. Any other keyword is a part, too (scheduler=scheduler). `per_rank` has by
    name what each rank has its own of; also a torch.Generator, random.Random or numpy.random.Generator. It is noted in each step,
    and so should be small. `unchanged` are objects with a state that training leaves as the set-up has made them (a teacher).

    With `memory_every=K` the state is kept in memory of the agent every K steps (see ddprun.keep()): when all ranks have died,
    the loops go on from there.

    Objects with a state in the functions around the loop that were not given are looked for at the first steps; if there is
    one, or if something cannot be made again, ddprun says so in one line, and restarts all ranks when one dies. After a
    replacement the ranks are compared before the next step is committed; if they differ, all begin anew, and a line names what.

    Raises TypeError for a part without the two methods, and for a reserved name; CannotRecover, a RuntimeError, out of a step
    when all ranks have to begin anew.
    """
    from ddprun import training
    return training.make(model, optimizer, parts, per_rank, unchanged, memory_every, more_parts)


def keep(step, state=None, shared=None):
    """Keeps what the training needs to go on after `step` in memory of the agent, until a later one is whole:

        kept = ddprun.kept()                     # None: begin anew, or from the disk
        if kept:
            model.load_state_dict(kept.shared["model"])
            optimizer.load_state_dict(kept.shared["optimizer"])
            torch.set_rng_state(kept.state)
        for step in range(kept.step + 1 if kept else 0, steps):
            ...
            if step % 5 == 0:
                ddprun.keep(step, torch.get_rng_state(),
                            shared={"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    Every rank calls it, after the same steps, which grow during the whole training. `state` is what this rank alone has, and
    is written whole; `shared` is equal on all ranks, and each rank of a node writes its share. Both are anything that
    torch.save() takes; tensors in dicts, lists and tuples are copied once. It waits for no other rank.

    Does nothing without ddprun, under another launcher, where no restart can follow, and in a standby. Where there is no
    room, one line on stderr says so, and the training goes on.
    """
    if "DDPRUN_LINK_FD" in os.environ:
        from ddprun import keeping
        keeping.keep(step, state, shared)


def kept():
    """The newest snapshot that is whole for all ranks, with its `step`, `state` and `shared`; None: there is none.

    Every rank calls it, as often as the others, before it calls keep(): they agree, and get the same step. Tensors are on
    the CPU, whatever they were on. It is None if a rank's part is not there: on a node that is new, or of a state that was
    not only shared if the number of ranks is another or a rank is on another node than then.
    """
    if "DDPRUN_LINK_FD" not in os.environ:
        return None
    from ddprun import keeping
    return keeping.kept()
