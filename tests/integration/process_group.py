"""A user's script, unmodified for ddprun: forms the process group from the environment and adds up the ranks."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="env://")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
# One write for the line: print() makes a second one for its end, and the ranks share this stdout.
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} has {total.item()}\n")
sys.stdout.flush()

# The first life ends in the middle of the work, so that the second must form a group beside its remains.
if "--die-once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()

dist.destroy_process_group()
