"""Accelerate with a loop of one's own, whose ranks are replaced in place (ddprun.recoverable)."""

import time

import accelerate
import tiny
import torch

import ddprun

EPOCHS, WAITS_AT = 30, 5
accelerator = accelerate.Accelerator(cpu=True)
model = tiny.model()
sampler = torch.utils.data.DistributedSampler(tiny.data())
loader = torch.utils.data.DataLoader(tiny.data(), batch_size=6, sampler=sampler)  # Accelerate's own cannot be put back
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
training = ddprun.recoverable(model, optimizer)
for epoch in training.epochs(EPOCHS):
    sampler.set_epoch(epoch)
    for step in training.steps(loader):
        with step as (inputs, targets):
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
        time.sleep(0.005)
        while training.committed == WAITS_AT and not (tiny.FOLDER / "go").exists():  # until there are standbys
            time.sleep(0.01)
tiny.is_over(0, training.committed, accelerator.unwrap_model(model).parameters())
accelerator.end_training()
