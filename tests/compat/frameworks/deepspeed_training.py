"""DeepSpeed with ZeRO's first stage on the CPU."""

import deepspeed
import tiny
import torch

deepspeed.init_distributed("gloo")
model = tiny.model()
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
    config={"train_micro_batch_size_per_gpu": 12 // tiny.WORLD, "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000})
saved, first = tiny.FOLDER / "checkpoint", 0
if (saved / "latest").exists():
    engine.load_checkpoint(str(saved))
    first = engine.global_steps
for step in range(first, tiny.STEPS):
    tiny.begins(step)
    inputs, targets = tiny.batch(step)
    engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
    engine.step()
    if step + 1 == tiny.SAVED_AT:
        engine.save_checkpoint(str(saved))
tiny.is_over(first, engine.global_steps, engine.module.parameters())
torch.distributed.destroy_process_group()
