"""A user's script, unmodified for ddprun: trains with DistributedDataParallel over Gloo, and compares the weights."""

import sys
import threading
import weakref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # DDP itself makes the weights equal
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
dist.all_gather(everyones, mine)
equal = all(torch.equal(mine, other) for other in everyones)
# One write for the line: print() makes a second one for its end, and the ranks share this stdout.
sys.stdout.write(f"rank {rank}: weights {'equal' if equal else 'differ'}\n")
sys.stdout.flush()
# A thread of Gloo's needs the interpreter to give these tensors back. Met by the interpreter's end instead, it aborts
# the process (PyTorch 2.11): so the end waits until they are gone.
given_back = []
for tensor in (mine, *everyones):
    given_back.append(threading.Event())
    weakref.finalize(tensor, given_back[-1].set)
del mine, everyones, tensor
for event in given_back:
    event.wait()
dist.destroy_process_group()
