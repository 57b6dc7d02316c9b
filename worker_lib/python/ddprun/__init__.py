"""For Python programs that ddprun starts; none needs it. `ddprun.progress` tells how far a worker is; `ddprun.join` lets
ranks that die be replaced while the others go on; `ddprun.keep` keeps a training's state in memory that outlives all ranks.

Steps of PyTorch's optimizers are told without it: ddprun brings the hooks of this package into every Python program that
it starts (`ddprun.hooks`), unless DDPRUN_PYTHON_HOOKS=0.
"""

import os
import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)  # ddprun.torch is a distribution of its own, maybe in another folder
_ON_DEMAND = ("progress", "torch")  # the modules that a program may use; torch imports PyTorch


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


def join(model, optimizer, scheduler=None, scaler=None, sampler=None, unchanged=(), **parts):
    """Returns what the loop of training goes through, so that a rank which dies is replaced and the others go on:

        job = ddprun.join(model=ddp, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
        for epoch in job.epochs(10):
            sampler.set_epoch(epoch)
            for batch in job.batches(loader):
                with job.step():
                    ...

    `model` is a DistributedDataParallel over Gloo; `optimizer` may be in the wrapper of a framework (Accelerate, Lightning);
    `scheduler` is one or a list; `parts` have a state_dict() and a
    load_state_dict(), and are small: what only this rank has. An object with a state in the loop's functions (another model,
    an optimizer, a generator) that was not given is looked for: it must be in `unchanged`, or no rank is replaced in place, and
    a line names it. After a replacement the ranks are compared before the next step is committed: what differs is named, and
    all ranks begin anew. Call it when all is set up, right before the loop. With
    job.batches(loader, per_step=n) a step has a list of n batches.

    Without ddprun, or where it replaces no workers, the loop is as if these three words were not there.
    """
    from ddprun import replace
    return replace.join(model, optimizer, scheduler, scaler, sampler, unchanged, parts)


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
