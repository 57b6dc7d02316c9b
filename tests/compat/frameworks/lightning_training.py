"""Lightning's Trainer over DDP, which starts no processes itself under a launcher."""

import lightning
import tiny
import torch

from ddprun.lightning import DataLoader, LeaveCallback


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.first = tiny.model(), 0

    def on_train_start(self):
        self.first = self.global_step

    def training_step(self, batch, _):
        tiny.begins(self.global_step)
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.model(tiny.dropped(inputs)), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(
    dirpath=tiny.FOLDER / "checkpoints", every_n_train_steps=tiny.SAVED_AT, save_last=True)
leave = LeaveCallback(tiny.FOLDER / "leave.ckpt")
trainer = lightning.Trainer(accelerator="cpu", devices=tiny.WORLD, strategy="ddp", max_steps=tiny.STEPS, logger=False,
                            callbacks=[checkpoint, leave], enable_progress_bar=False, enable_model_summary=False)
module, loader = Module(), DataLoader(tiny.data(), batch_size=12 // tiny.WORLD, shuffle=True)
trainer.fit(module, loader, ckpt_path=leave.checkpoint(tiny.FOLDER / "checkpoints/last.ckpt"), weights_only=False)
tiny.is_over(module.first, trainer.global_step, module.parameters())
