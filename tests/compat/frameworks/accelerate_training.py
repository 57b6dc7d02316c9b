"""Accelerate: prepare, and the functions of ddprun.accelerate around save_state and load_state."""

import accelerate
import tiny
import torch

from ddprun.accelerate import leave, rest, resume, save

accelerator = accelerate.Accelerator(
    cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=True))
model = tiny.model()
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters(), lr=0.01),
    torch.utils.data.DataLoader(tiny.data(), batch_size=12 // tiny.WORLD, shuffle=True))
states = tiny.FOLDER / "states"
first = resume(accelerator, states)
for epoch in range(first // len(loader), tiny.STEPS // len(loader)):
    for step, (inputs, targets) in rest(accelerator, loader, epoch, first):
        tiny.begins(step)
        accelerator.backward(torch.nn.functional.mse_loss(model(tiny.dropped(inputs)), targets))
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == tiny.SAVED_AT:
            save(accelerator, states, step + 1)
        leave(accelerator, states, step + 1)
tiny.is_over(first, step + 1, accelerator.unwrap_model(model).parameters())
accelerator.end_training()
