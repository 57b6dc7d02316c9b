"""Trainings over shm beside the same over Gloo: cases of torch_backend.py."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from torch_backend_common import same, start, tensor_of


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.BatchNorm1d(300), nn.ReLU(),
                         nn.Linear(300, 4))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.one, self.other = nn.Linear(20, 4), nn.Linear(20, 4)
        self.turn = 0

    def forward(self, x):
        self.turn += 1
        return (self.one if self.turn % 2 else self.other)(x)


def slow_mean(state, bucket):
    return dist.all_reduce(bucket.buffer(), group=state, async_op=True).get_future().then(
        lambda future: future.value()[0] / dist.get_world_size())


TRAININGS = {
    "plain": (net, {}, None),
    "small buckets": (net, {"bucket_cap_mb": 0.01}, None),
    "views": (net, {"gradient_as_bucket_view": True}, None),
    "static graph": (net, {"static_graph": True}, None),
    "unused parameters": (Branches, {"find_unused_parameters": True}, None),
    "no buffers": (net, {"broadcast_buffers": False}, None),
    "bfloat16 hook": (net, {}, default_hooks.bf16_compress_hook),
    "hook in Python": (net, {}, slow_mean),
}


def train(group, make, options, hook, steps=6):
    rank = dist.get_rank()
    model = DistributedDataParallel(make(), process_group=group, **options)
    if hook:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x = tensor_of(rank, (16, 20), torch.float32, seed=step)
        with contextlib.ExitStack() as stack:
            if step == 2 and "static_graph" not in options and make is net:
                stack.enter_context(model.no_sync())
            nn.functional.cross_entropy(model(x), torch.arange(16) % 4).backward()
        if step != 2:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def uneven(group):
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 4)), process_group=group)
    with model.join():
        for step in range(2 + rank):
            model(tensor_of(rank, (8, 20), torch.float32, step)).sum().backward()
    return model.module[0].weight.grad


def ddp():
    rank, size = start("gloo")
    group = dist.new_group(backend="shm")
    for name, (make, options, hook) in TRAININGS.items():
        same(train(group, make, options, hook), train(dist.group.WORLD, make, options, hook), f"DDP, {name}", size == 2,
             1e-2 if hook is default_hooks.bf16_compress_hook else 1e-4)
    gradients = []
    for each in (group, dist.group.WORLD):
        torch.manual_seed(5)
        gradients.append(uneven(each))
    same(*gradients, "DDP, join", size == 2)
    dist.destroy_process_group()


def sharded():
    """FSDP2 and DTensor on the group that the program has: what Gloo's has, too."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    results = []
    for backend in ("shm", "gloo"):
        rank, size = start(backend)
        mesh = init_device_mesh("cpu", (size,))
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(5):
            model(tensor_of(rank, (16, 32), torch.float32, step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        whole = torch.cat([value.flatten() for value in state.values()]) if state else torch.zeros(0)
        matrix = distribute_tensor(torch.arange(48.0).view(8, 6), mesh, [Shard(0)])
        product = (matrix @ distribute_tensor(torch.ones(6, 4), mesh, [Replicate()])).redistribute(mesh, [Shard(1)])
        results.append((whole, product.full_tensor(), matrix.sum().full_tensor()))
        dist.destroy_process_group()
    for ours, theirs in zip(*results):
        same(ours, theirs, "FSDP2 and DTensor", size == 2)
