"""torchft: each replica is a job of its own; a killed one takes the weights from the living one, which waits for it."""

import datetime
import os

import tiny
import torch
import torchft

model = tiny.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
replica, patience = os.environ["REPLICA"], datetime.timedelta(minutes=5)
first = None


def load(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = torchft.Manager(
    pg=torchft.ProcessGroupGloo(timeout=patience), load_state_dict=load, min_replica_size=2,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    replica_id=replica, timeout=patience, quorum_timeout=patience, connect_timeout=patience)
parallel, optimizer = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
while manager.current_step() < tiny.STEPS:
    step = manager.current_step()
    if replica == "second":
        tiny.begins(step)
    inputs, targets = tiny.batch(step)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(parallel(inputs), targets).backward()
    if first is None:
        first = manager.current_step()  # where the replicas are, as this one knows since it has met the others
    optimizer.step()
tiny.is_over(first, manager.current_step(), model.parameters())
manager.shutdown(wait=False)
