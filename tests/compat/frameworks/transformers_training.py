"""Transformers' Trainer with a GPT-2 of one layer."""

import tiny
import torch
import transformers

from ddprun.transformers import LeaveCallback, last_checkpoint

torch.manual_seed(7)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=31, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
tokens = torch.randint(0, 31, (48, 8), generator=torch.Generator().manual_seed(11))
first = 0


class Watch(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        global first
        first = state.global_step

    def on_step_begin(self, args, state, control, **kwargs):
        tiny.begins(state.global_step)


arguments = transformers.TrainingArguments(
    output_dir=str(tiny.FOLDER / "checkpoints"), use_cpu=True, max_steps=tiny.STEPS, save_steps=tiny.SAVED_AT, report_to=[],
    per_device_train_batch_size=12 // tiny.WORLD, learning_rate=0.01, disable_tqdm=True)
trainer = transformers.Trainer(model, arguments, train_dataset=[{"input_ids": each, "labels": each} for each in tokens],
                               callbacks=[Watch(), LeaveCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))
tiny.is_over(first, trainer.state.global_step, model.parameters())
