"""ddprun.transformers, ddprun.lightning and ddprun.accelerate in one process: a training that is left at each step in turn, and
goes on in a new Trainer, ends with the bits, the evaluations and the best checkpoint of one that was not left.

  framework_adapters.py [unittest's arguments]
"""

import hashlib
import importlib.util
import logging
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "worker_lib/python"))
import ddprun

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1"}
NEVER = 1000
BATCHES, EPOCHS = 5, 2
INPUTS = torch.randn(2 * BATCHES, 6, generator=torch.Generator().manual_seed(1))
DATA = torch.utils.data.TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True).sin())


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))


def bits(module):
    weights = torch.cat([each.detach().reshape(-1) for each in module.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


class Leaves(unittest.TestCase):
    def compare(self, train, asked):
        """`train(folder)` returns (bits, what was seen on the way), or (None, what was seen) when it was left. It asks `asked`
        times."""
        def run(folder, number):
            answers = iter(range(1, NEVER))
            with mock.patch.object(ddprun, "should_leave", lambda: next(answers) >= number, create=True):
                result = train(folder)
            return *result, next(answers) - 1

        with tempfile.TemporaryDirectory() as folder:
            plain, seen, calls = run(folder, NEVER)
        self.assertIsNotNone(plain)
        self.assertEqual(calls, asked)
        for number in range(1, asked + 1):
            with self.subTest(number=number), tempfile.TemporaryDirectory() as folder:
                none, before, calls = run(folder, number)
                self.assertEqual((none, calls), (None, number))
                weights, after, _ = run(folder, NEVER)
                self.assertEqual(weights, plain)
                self.assertEqual(before + after, seen)


@unittest.skipUnless(importlib.util.find_spec("transformers"), "the package transformers is not installed")
class Transformers(Leaves):
    def compare_with(self, asked, **options):
        import transformers
        from ddprun.transformers import LeaveCallback, last_checkpoint
        transformers.logging.set_verbosity_error()
        tokens = torch.randint(0, 31, (2 * BATCHES, 8), generator=torch.Generator().manual_seed(11))
        samples = [{"input_ids": each, "labels": each} for each in tokens]

        def train(folder):
            torch.manual_seed(7)
            its = transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=31, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
            arguments = transformers.TrainingArguments(
                output_dir=folder, use_cpu=True, report_to=[], per_device_train_batch_size=2, num_train_epochs=EPOCHS,
                learning_rate=0.01, disable_tqdm=True, logging_strategy="no", **options)
            trainer = transformers.Trainer(its, arguments, train_dataset=samples, eval_dataset=samples[:4],
                                           callbacks=[LeaveCallback()])
            trainer.remove_callback(transformers.PrinterCallback)
            first = last_checkpoint(folder)
            known = 0 if first is None else int(first.rpartition("-")[2])
            result = None
            try:
                trainer.train(resume_from_checkpoint=first)
                result = bits(its), trainer.state.best_global_step
            except SystemExit as end:
                self.assertEqual(end.code, 0)
                self.assertEqual(last_checkpoint(folder), f"{folder}/checkpoint-{trainer.state.global_step}")
            return result, [(each["step"], each["eval_loss"]) for each in trainer.state.log_history
                            if "eval_loss" in each and each["step"] > known]

        self.compare(train, asked)

    def test_nothing_saved_otherwise(self):
        self.compare_with(EPOCHS * BATCHES - 1, save_strategy="no")

    def test_accumulated_gradients(self):
        self.compare_with(EPOCHS * 3 - 1, save_strategy="no", gradient_accumulation_steps=2)

    def test_save_strategy_best(self):
        self.compare_with(EPOCHS * BATCHES - 1, save_strategy="best", eval_strategy="steps", eval_steps=1,
                          metric_for_best_model="loss", greater_is_better=False)

    def test_best_model_of_the_epochs_at_the_end(self):
        self.compare_with(EPOCHS * BATCHES - 1, save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True,
                          save_total_limit=1)

    def test_save_only_model(self):
        self.compare_with(EPOCHS * BATCHES - 1, save_strategy="epoch", save_only_model=True)

    def test_a_checkpoint_that_was_not_written_to_its_end(self):
        from ddprun.transformers import last_checkpoint
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(last_checkpoint(folder))
            self.assertIsNone(last_checkpoint(f"{folder}/missing"))
            for number in (9, 10, 11):
                Path(folder, f"checkpoint-{number}").mkdir()
            for number in (9, 10):
                Path(folder, f"checkpoint-{number}/trainer_state.json").touch()
            self.assertEqual(last_checkpoint(folder), f"{folder}/checkpoint-10")


@unittest.skipUnless(importlib.util.find_spec("lightning"), "the package lightning is not installed")
class Lightning(Leaves):
    def compare_with(self, asked, *validation, **options):
        import lightning
        from ddprun.lightning import DataLoader, LeaveCallback
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model, self.seen = model(), []

            def training_step(self, batch, _):
                return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

            def validation_step(self, batch, _):
                self.seen.append(f"validated after {self.global_step}")

            def on_train_epoch_end(self):
                self.seen.append(f"an epoch ends after {self.global_step}")

            def configure_optimizers(self):
                optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
                return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), "interval": "step"}]

        def train(folder):
            module, leave = Module(), LeaveCallback(f"{folder}/leave.ckpt")
            trainer = lightning.Trainer(
                accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, enable_checkpointing=False, callbacks=[leave],
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **options)
            result = None
            try:
                trainer.fit(module, DataLoader(DATA, batch_size=2), *validation, ckpt_path=leave.checkpoint())
                result = bits(module)
            except SystemExit as end:
                self.assertEqual(end.code, 0)
                self.assertEqual(os.listdir(folder), ["leave.ckpt"])
            return result, module.seen

        self.compare(train, asked)

    def test_epochs(self):
        self.compare_with(EPOCHS * (BATCHES - 1))

    def test_accumulated_gradients(self):
        self.compare_with(EPOCHS * 2, accumulate_grad_batches=2)

    def test_validation(self):
        self.compare_with(EPOCHS * 2, torch.utils.data.DataLoader(DATA, batch_size=10), val_check_interval=2)

    def test_validation_counted_over_epochs(self):
        self.compare_with(5, torch.utils.data.DataLoader(DATA, batch_size=10), val_check_interval=3, check_val_every_n_epoch=None)

    def test_a_number_of_steps(self):
        self.compare_with(5, max_steps=7)


@unittest.skipUnless(importlib.util.find_spec("accelerate"), "the package accelerate is not installed")
class Accelerate(Leaves):
    def compare_with(self, asked, **options):
        import accelerate
        from ddprun.accelerate import leave, rest, resume

        def train(folder):
            accelerator = accelerate.Accelerator(
                cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=True), **options)
            its = model()
            its, optimizer, loader = accelerator.prepare(its, torch.optim.AdamW(its.parameters(), lr=0.01),
                                                         torch.utils.data.DataLoader(DATA, batch_size=2, shuffle=True))
            first, seen = resume(accelerator, f"{folder}/states"), []
            try:
                for epoch in range(first // len(loader), EPOCHS):
                    for number, (inputs, targets) in rest(accelerator, loader, epoch, first):
                        with accelerator.accumulate(its):
                            accelerator.backward(torch.nn.functional.mse_loss(its(inputs), targets))
                            optimizer.step()
                            optimizer.zero_grad()
                        seen.append(number)
                        leave(accelerator, f"{folder}/states", number + 1)
            except SystemExit as end:
                self.assertEqual(end.code, 0)
                self.assertEqual(os.listdir(f"{folder}/states"), [str(number + 1)])
                return None, seen
            return bits(its), seen

        self.compare(train, asked)

    def test_epochs(self):
        self.compare_with(EPOCHS * BATCHES)

    def test_accumulated_gradients(self):
        self.compare_with(EPOCHS * 3, gradient_accumulation_steps=2)


if __name__ == "__main__":
    unittest.main()
