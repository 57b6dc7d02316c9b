"""Accelerate: prepare, save_state, load_state."""

import accelerate
import tiny
import torch

accelerator = accelerate.Accelerator(cpu=True)
model = tiny.model()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
saved, first = tiny.FOLDER / "state", 0
if saved.exists():
    accelerator.load_state(str(saved))
    first = tiny.SAVED_AT
for step in range(first, tiny.STEPS):
    tiny.begins(step)
    inputs, targets = tiny.batch(step)
    accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == tiny.SAVED_AT:
        accelerator.save_state(str(saved))
tiny.is_over(first, step + 1, accelerator.unwrap_model(model).parameters())
accelerator.end_training()
