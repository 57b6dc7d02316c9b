"""A DDP training in Python for campaigns: on made-up data, with ddprun.recoverable, a checkpoint after each epoch, and a line for each
step of what it uses (samples.py).

    training.py FOLDER SAMPLES EPOCHS COUNT

FOLDER/checkpoint.pt is where it continues; FOLDER/final.bin, the bytes of the weights and of the optimizer, is its result.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ddprun
from ddprun import progress

BATCH = 8


def save(path, write):
    """Another file of this name is there until this one is whole. A full disk is no reason to end."""
    aside = path.with_suffix(".new")
    try:
        write(aside)
        aside.rename(path)
        return True
    except (OSError, RuntimeError) as error:
        print(f"training.py: {path.name} is not saved: {error}", file=sys.stderr)
        return False


def main():
    folder, samples, epochs, count = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    data = TensorDataset(torch.arange(count), torch.randn(count, 32), torch.arange(count) % 10)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if world > 2:
        settle_buckets(model)
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    per_epoch = len(loader)
    used = open(f"{samples}.rank{rank}", "ab", buffering=0)
    training = ddprun.recoverable(model, optimizer)
    for epoch in training.epochs(epochs):
        if epoch < steps_of(optimizer) // per_epoch:  # it is in the checkpoint
            continue
        sampler.set_epoch(epoch)
        for step in training.steps(loader):
            with step as (indices, inputs, targets):
                # The number is counted from what the optimizer has, which a process that takes a rank's place has, too.
                made = steps_of(optimizer)
                line = [made + 1, epoch, world, made % per_epoch * BATCH * world, *indices.tolist()]
                used.write(("\n" + " ".join(map(str, line)) + " .").encode())
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            progress.report(made + 1, total=epochs * per_epoch)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(folder / "checkpoint.pt", lambda path: torch.save(state, path))
    if rank == 0:
        tensors = [*model.parameters(), *(each for state in optimizer.state.values() for each in state.values())]
        whole = b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)
        if not save(folder / "final.bin", lambda path: path.write_bytes(whole)):
            sys.exit(1)
    dist.barrier()
    dist.destroy_process_group()


def settle_buckets(model):
    """DDP gives its buckets their last layout when it has seen one backward pass. Three and more ranks add up in an order
    that depends on where in a bucket a value is, so without this the first step after each start would have other bits. A
    standby cannot do it alone: ranks of such a training are not replaced in place."""
    model(torch.zeros(BATCH, 32)).sum().backward()
    model(torch.zeros(BATCH, 32)).sum().backward()
    model.zero_grad()


def steps_of(optimizer):
    return next((int(state["step"]) for state in optimizer.state.values()), 0)


if __name__ == "__main__":
    main()
