"""What the cases of torch_backend.py have in common: groups, tensors that each rank can make, comparison with Gloo."""

import datetime
import functools

import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
SHAPES = [(0,), (1,), (7,), (1000,), (33, 65), (300_001,)]
Op = dist.ReduceOp


def start(backend, **more):
    """Rank and number of ranks."""
    import ddprun.torch  # noqa: F401
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60), **more)
    return dist.get_rank(), dist.get_world_size()


def tensor_of(rank, shape, dtype, seed=0):
    return _made(rank, tuple(shape), dtype, seed).clone()


@functools.lru_cache(maxsize=32)  # what a check of one type and shape asks for again and again
def _made(rank, shape, dtype, seed):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 5, shape, generator=generator).to(dtype)


ROUNDING = {2: 6e-2, 4: 2e-5, 8: 1e-12}  # of a few summands around 1, by the bytes of a number


def same(ours, theirs, what, is_exact=True, rounding=0):
    rounding = rounding or ROUNDING.get(ours.element_size(), 0)
    close = torch.equal(ours, theirs) if is_exact else torch.allclose(ours.double(), theirs.double(), rounding,
                                                                      rounding)
    assert close, f"{what}: shm has {ours.flatten()[:4]}, and it is to be {theirs.flatten()[:4]}"


def both(group, make, call):
    """What `call` leaves in the tensor of make(), over shm and over Gloo."""
    results = []
    for each in (group, dist.group.WORLD):
        tensor = make()
        call(each, tensor)
        results.append(tensor)
    return results
