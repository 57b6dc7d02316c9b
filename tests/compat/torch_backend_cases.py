"""What each rank of torch_backend.py does: `torch_backend_cases.py CASE [arguments]`, with RANK and the other variables
of a launcher. A case ends with exit code 0, or says what differs."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from torch_backend_common import FLOATS, INTEGERS, SHAPES, Op, both, same, start, tensor_of
from torch_backend_training import TRAININGS, ddp, net, sharded, train


def reductions(group, rank, size):
    for dtype in FLOATS + INTEGERS:
        ops = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
        if not dtype.is_floating_point:
            ops += [Op.BAND, Op.BOR, Op.BXOR]
        for op in ops:
            for shape in SHAPES:
                what = f"all_reduce of {shape} {dtype} by {op}"
                ours = tensor_of(rank, shape, dtype)
                dist.all_reduce(ours, op, group)
                if dtype == torch.int16:  # which Gloo does not know
                    theirs = tensor_of(rank, shape, torch.int32)
                    dist.all_reduce(theirs, op)
                    theirs = theirs.to(torch.int16)
                else:
                    theirs = tensor_of(rank, shape, dtype)
                    dist.all_reduce(theirs, op)
                same(ours, theirs, what, size == 2 or not dtype.is_floating_point)
                for root in range(size):
                    reduced = tensor_of(rank, shape, dtype)
                    dist.reduce(reduced, root, op, group)
                    if rank == root:
                        same(reduced, ours, what.replace("all_", ""))
    average = tensor_of(rank, (1000,), torch.float32)
    dist.all_reduce(average, Op.AVG, group)
    total = tensor_of(rank, (1000,), torch.float32)
    dist.all_reduce(total, group=group)
    same(average, total / size, "the average")
    for dtype, op in (torch.complex64, Op.SUM), (torch.bool, Op.MAX):
        ours, theirs = both(group, lambda: tensor_of(rank, (100,), dtype), lambda each, t: dist.all_reduce(t, op, each))
        if dtype.is_complex:
            ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
        same(ours, theirs, f"all_reduce of {dtype}", size == 2 or dtype == torch.bool)


def repeats(group, rank, size):
    """The same bits each time, and on each rank."""
    for dtype in FLOATS:
        first = None
        for _ in range(5):
            tensor = tensor_of(rank, (100_003,), dtype)
            dist.all_reduce(tensor, group=group)
            first = tensor if first is None else first
            same(tensor, first, "again")
        parts = [torch.empty_like(first) for _ in range(size)]
        dist.all_gather(parts, first, group=group)
        for part in parts:
            same(part, first, "another rank's sum")


def movers(group, rank, size):
    for dtype in FLOATS + INTEGERS + [torch.bool, torch.complex64]:
        for shape in SHAPES:
            def own(seed=0):
                return tensor_of(rank, shape, dtype, seed)

            def empties():
                return [torch.zeros(shape, dtype=dtype) for _ in range(size)]

            from_each = [tensor_of(each, shape, dtype) for each in range(size)]
            what = f"of {shape} {dtype}"
            for root in range(size):
                tensor = own()
                dist.broadcast(tensor, root, group)
                same(tensor, from_each[root], f"broadcast {what}")
                parts = empties()
                dist.gather(own(), parts if rank == root else None, root, group)
                for each in range(size if rank == root else 0):
                    same(parts[each], from_each[each], f"gather {what}")
                tensor = torch.zeros(shape, dtype=dtype)
                dist.scatter(tensor, [own(seed) for seed in range(size)] if rank == root else None, root, group)
                same(tensor, tensor_of(root, shape, dtype, rank), f"scatter {what}")
            parts = empties()
            dist.all_gather(parts, own(), group)
            for each in range(size):
                same(parts[each], from_each[each], f"all_gather {what}")
            parts = empties()
            dist.all_to_all(parts, [own(seed) for seed in range(size)], group)
            for each in range(size):
                same(parts[each], tensor_of(each, shape, dtype, rank), f"all_to_all {what}")
            whole = torch.zeros((size * shape[0], *shape[1:]), dtype=dtype)
            dist.all_gather_into_tensor(whole, own(), group)
            same(whole, torch.cat(from_each), f"all_gather_into_tensor {what}")
            received = torch.zeros_like(whole)
            dist.all_to_all_single(received, torch.cat([own(seed) for seed in range(size)]), group=group)
            same(received, torch.cat([tensor_of(each, shape, dtype, rank) for each in range(size)]),
                 f"all_to_all_single {what}")


def scattered_sums(group, rank, size):
    for dtype in FLOATS + [torch.int32, torch.int64]:
        for op in (Op.SUM, Op.MAX):
            for count in (1, 1000, 50_000):
                whole = tensor_of(rank, (size * count,), dtype)
                expected = whole.clone()
                dist.all_reduce(expected, op, group)
                part = torch.zeros(count, dtype=dtype)
                dist.reduce_scatter_tensor(part, whole, op, group)
                same(part, expected[rank * count:(rank + 1) * count], "reduce_scatter_tensor")
                part.zero_()
                dist.reduce_scatter(part, list(whole.chunk(size)), op, group)
                same(part, expected[rank * count:(rank + 1) * count], "reduce_scatter")


def layouts(group, rank, size):
    for make in (lambda: tensor_of(rank, (40, 30), torch.float32).t(),
                 lambda: tensor_of(rank, (60, 30), torch.float32)[::2]):
        ours, theirs = both(group, lambda: make().contiguous(), lambda each, t: dist.all_reduce(t, group=each))
        tensor = make()
        dist.all_reduce(tensor, group=group)
        same(tensor, theirs, "not contiguous", size == 2)
        same(tensor, ours, "not contiguous")
    splits = [each + 1 for each in range(size)]
    sent = tensor_of(rank, (sum(splits), 3), torch.float32)
    received, expected = both(group, lambda: torch.zeros(size * (rank + 1), 3), lambda each, t: dist.all_to_all_single(
        t, sent, [rank + 1] * size, splits, group=each))
    same(received, expected, "all_to_all_single with splits")
    indices, values = torch.tensor([[rank, rank + 1]]), tensor_of(rank, (2, 3), torch.float32)
    ours, theirs = both(group, lambda: torch.sparse_coo_tensor(indices, values.clone(), (size + 1, 3)),
                        lambda each, t: dist.all_reduce(t, group=each))
    same(ours.to_dense(), theirs.to_dense(), "all_reduce of sparse tensors", size == 2)


def coalesced(group, rank, size):
    make = lambda: [tensor_of(rank, (count,), torch.float32) for count in (5, 1000, 70_000)]  # noqa: E731
    expected = make()
    for tensor in expected:
        dist.all_reduce(tensor, group=group)
    tensors = make()
    dist.all_reduce_coalesced(tensors, group=group)
    for tensor, one in zip(tensors, expected):
        same(tensor, one, "all_reduce_coalesced")
    tensors = make()
    with dist._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    for tensor, one in zip(tensors, expected):
        same(tensor, one, "all_reduce in a coalescing manager")
    outputs = [torch.zeros(size * tensor.numel()) for tensor in make()]
    with dist._coalescing_manager(group, async_ops=True) as work:
        for output, tensor in zip(outputs, make()):
            dist.all_gather_into_tensor(output, tensor, group=group)
    work.wait()
    for output, tensor in zip(outputs, make()):
        same(output, torch.cat([tensor_of(each, tensor.shape, torch.float32) for each in range(size)]), "all_gather")
    parts = [torch.zeros_like(tensor) for tensor in expected]
    wholes = [torch.cat([tensor] * size) for tensor in make()]
    with dist._coalescing_manager(group):
        for part, whole in zip(parts, wholes):
            dist.reduce_scatter_tensor(part, whole, group=group)
    for part, one in zip(parts, expected):
        same(part, one, "coalesced reduce_scatter")
    lists = [[torch.zeros_like(tensor) for tensor in expected] for _ in range(size)]
    dist.all_gather_coalesced(lists, make(), group=group)
    for each in range(size):
        for tensor in lists[each]:
            same(tensor, tensor_of(each, tensor.shape, torch.float32), "all_gather_coalesced")


def messages(group, rank, size):
    neighbour, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.int64, torch.bool):
        for shape in SHAPES[1:]:
            tensor = torch.zeros(shape, dtype=dtype)
            sent = dist.isend(tensor_of(rank, shape, dtype), neighbour, group, tag=3)
            dist.recv(tensor, before, group, tag=3)
            sent.wait()
            same(tensor, tensor_of(before, shape, dtype), "recv")
    tensor = torch.zeros(10)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor_of(rank, (10,), torch.float32), neighbour, group),
                                    dist.P2POp(dist.irecv, tensor, before, group)])
    for work in works:
        work.wait()
    same(tensor, tensor_of(before, (10,), torch.float32), "batch_isend_irecv")
    if rank == 0:
        seen = {dist.recv(tensor, group=group) for _ in range(1, size)}
        assert seen == set(range(1, size)), f"messages of any rank came from {seen}"
    else:
        dist.send(torch.ones(10), 0, group)


def objects(group, rank, size):
    own = {"rank": rank, "text": "ä" * (rank + 1)}
    parts = [None] * size
    dist.all_gather_object(parts, own, group)
    assert [part["rank"] for part in parts] == list(range(size)), parts
    listed = [own, rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(listed, 1, group)
    assert listed == [{"rank": 1, "text": "ää"}, 1], listed
    parts = [None] * size if rank == 0 else None
    dist.gather_object(own, parts, 0, group)
    assert rank != 0 or parts[-1]["rank"] == size - 1
    mine = [None]
    dist.scatter_object_list(mine, [f"for {each}" for each in range(size)] if rank == 0 else None, 0, group)
    assert mine == [f"for {rank}"], mine
    if rank == 0:
        dist.send_object_list([own, 7], 1, group)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, 0, group)
        assert received[1] == 7, received


def asynchronous(group, rank, size):
    tensors = [torch.full((count,), float(rank)) for count in (10, 100_000, 10)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    doubled = works[1].get_future().then(lambda future: future.value()[0] * 2)
    total = sum(range(size))
    for tensor, work in zip(tensors, works):
        work.wait()
        assert work.is_completed() and tensor[-1] == total
    assert doubled.wait()[0] == 2 * total
    dist.barrier(group, async_op=True).wait()
    dist.barrier(group)


def functional(group, rank, size):
    import torch.distributed._functional_collectives as functions
    tensor = tensor_of(rank, (size * 4,), torch.float32)
    expected = tensor.clone()
    dist.all_reduce(expected, group=group)
    same(functions.all_reduce(tensor, "sum", group) + 0, expected, "functional all_reduce")
    whole = functions.all_gather_tensor(tensor, 0, group) + 0
    same(whole[rank * size * 4:][:size * 4], tensor, "functional all_gather")
    part = functions.reduce_scatter_tensor(tensor, "sum", 0, group) + 0
    same(part, expected.chunk(size)[rank], "functional reduce_scatter")


def collectives():
    rank, size = start("gloo")
    group = dist.new_group(backend="shm")
    assert dist.get_backend(group) == "shm" and group._get_backend(torch.device("cpu")).name() == "shm"
    for check in (reductions, repeats, movers, scattered_sums, layouts, coalesced, messages, objects, asynchronous,
                  functional):
        check(group, rank, size)
    small = dist.new_group([0, size - 1], backend="shm")
    if small is not dist.GroupMember.NON_GROUP_MEMBER:
        tensor = torch.ones(5)
        dist.all_reduce(tensor, group=small)
        assert tensor[0] == 2
    dist.destroy_process_group()


def names():
    """Each way to say it, over one store: the program ends its groups and makes new ones."""
    here, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, here == 0)
    for backend in ("shm", "cpu:shm", "cpu:shm,cuda:gloo", "shm"):
        _, size = start(backend, store=store, rank=here, world_size=ranks)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor[0] == size
        dist.destroy_process_group()
    if here == 0:  # it serves the store
        store.wait([f"{each} left" for each in range(1, ranks)])
    else:
        store.set(f"{here} left", "")


def nodes(expected):
    rank, size = start("gloo")
    group = dist.new_group(backend="shm")
    assert group._get_backend(torch.device("cpu")).name() == expected, group._get_backend(torch.device("cpu")).name()
    for dtype in (torch.float32, torch.int32, torch.bfloat16):
        ours, theirs = both(group, lambda: tensor_of(rank, (10_001,), dtype),
                            lambda each, t: dist.all_reduce(t, group=each))
        same(ours, theirs, "all_reduce", not dtype.is_floating_point)
    for root in range(size):
        tensor = tensor_of(rank, (1000,), torch.float32)
        dist.broadcast(tensor, root, group)
        same(tensor, tensor_of(root, (1000,), torch.float32), "broadcast")
    coalesced_sum = [torch.ones(3), torch.ones(4)]
    dist.all_reduce_coalesced(coalesced_sum, group=group)
    assert coalesced_sum[1][0] == size
    parts = [torch.zeros(7) for _ in range(size)]
    dist.all_gather(parts, torch.full((7,), float(rank)), group)
    assert [int(part[0]) for part in parts] == list(range(size))
    objects(group, rank, size)
    dist.barrier(group)
    for name, (make, options, hook) in list(TRAININGS.items())[:3]:
        same(train(group, make, options, hook), train(dist.group.WORLD, make, options, hook), f"DDP, {name}", False,
             1e-4)
    dist.destroy_process_group()


def death():
    rank, size = start("shm")
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if rank == 1:
        with open(sys.argv[2], "w") as file:
            file.write(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        heard, words = time.monotonic(), error_line(error)
    with open(sys.argv[2]) as file:
        print(f"{(heard - float(file.read())) * 1e3:.1f} ms: {words}", flush=True)
    os._exit(0)  # as a program does that cannot wait for the others


def error_line(error):
    return str(error).splitlines()[0]


def disagreement():
    """Bad input: a sentence each, and never a hang."""
    rank, size = start("gloo")

    def refused(kind, words, call):
        try:
            call(dist.new_group(backend="shm"))
        except kind as error:
            assert words in str(error), f"'{words}' is not in '{error}'"
        else:
            raise AssertionError(f"nothing was said: {words}")

    refused(dist.DistBackendError, "rank", lambda group: dist.all_reduce(torch.ones(10 + rank), group=group))
    refused(dist.DistBackendError, "rank", lambda group: dist.all_reduce(torch.ones(10), group=group) if rank else
            dist.broadcast(torch.ones(10), 0, group=group))
    refused(ValueError, "all_reduce of Float", lambda group: dist.all_reduce(torch.ones(10), Op.BAND, group))
    refused(ValueError, "takes tensors of one size and type", lambda group: dist.all_gather(
        [torch.ones(3)] * size, torch.ones(4), group))
    dist.destroy_process_group()


def mixed():
    try:
        start("shm" if int(os.environ["RANK"]) == 0 else "gloo")
    except dist.DistBackendError as error:
        print(error_line(error), flush=True)
        os._exit(7)


def unmodified():
    """A program that says gloo, and knows nothing of ddprun."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    dist.monitored_barrier()
    backend = dist.group.WORLD._get_backend(torch.device("cpu")).name()
    print(dist.get_backend(), backend, int(tensor[0]), flush=True)
    other = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(tensor, group=other)
    if backend == "shm":
        train(dist.group.WORLD, net, {}, None)
    dist.destroy_process_group()


CASES = {each.__name__: each
         for each in (collectives, names, ddp, sharded, nodes, death, disagreement, mixed, unmodified)}


def main():
    torch.set_num_threads(1)
    case = CASES[sys.argv[1]]
    case(*sys.argv[2:]) if case is nodes else case()


if __name__ == "__main__":
    main()
