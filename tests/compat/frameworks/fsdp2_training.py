"""FSDP2 (fully_shard), whose distributed checkpoint another number of ranks reads."""

import tiny
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (tiny.WORLD,))
model = tiny.model()
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"weights": weights, "moments": moments}


saved, first = tiny.FOLDER / "checkpoint", 0
if (saved / ".metadata").exists():
    found = state()
    dcp.load(found, checkpoint_id=saved)
    set_state_dict(model, optimizer, model_state_dict=found["weights"], optim_state_dict=found["moments"])
    first = tiny.SAVED_AT
for step in range(first, tiny.STEPS):
    tiny.begins(step)
    inputs, targets = tiny.batch(step)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == tiny.SAVED_AT:
        dcp.save(state(), checkpoint_id=saved)
whole = [each.full_tensor() for each in model.parameters()]
tiny.is_over(first, step + 1, whole)
dist.destroy_process_group()
