"""For Python programs that ddprun starts; none needs it. `ddprun.progress` tells how far a worker is; `ddprun.join` lets
ranks that die be replaced while the others go on.

Steps of PyTorch's optimizers are told without it: ddprun brings the hooks of this package into every Python program that
it starts (`ddprun.hooks`), unless DDPRUN_PYTHON_HOOKS=0.
"""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)  # ddprun.torch is a distribution of its own, maybe in another folder


def join(model, optimizer, scheduler=None, scaler=None, sampler=None, **parts):
    """Returns what the loop of training goes through, so that a rank which dies is replaced and the others go on:

        job = ddprun.join(model=ddp, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
        for epoch in job.epochs(10):
            sampler.set_epoch(epoch)
            for batch in job.batches(loader):
                with job.step():
                    ...

    `model` is a DistributedDataParallel over Gloo; `scheduler` one or a list; `parts` have a state_dict() and a
    load_state_dict(), and are small: what only this rank has. Call it when all is set up, right before the loop. With
    job.batches(loader, per_step=n) a step has a list of n batches.

    Without ddprun, or where it replaces no workers, the loop is as if these three words were not there.
    """
    from ddprun import replace
    return replace.join(model, optimizer, scheduler, scaler, sampler, parts)
