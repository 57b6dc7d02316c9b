"""Trainings in Python as people write them, drawn at random, whose ranks are killed at random: each ends with the bits of
an undisturbed run, or a sentence says what was amiss, and all ranks begin anew; never anything else (ddprun.recoverable).

  python_loops.py DDPRUN DDPCTL [SEED…]

The usual run kills 30 times, with DDPRUN_TEST_FULL=1 it is 300 times.
"""
import json
import random
import sys
import tempfile
import unittest
from pathlib import Path

import python_replace
from python_replace import AHEAD, FIRST, FULL

KILLS = 6
SEEDS = [int(each) for each in sys.argv[1:]] or (range(50) if FULL else (0, 1, 2, 4, 11))  # 11: SAM alone
sys.argv[1:] = []

PROGRAM = '''
import hashlib, json, math, os, pathlib, random, sys, time
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, TensorDataset
import ddprun

folder, has = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 24)
        self.norm = nn.BatchNorm1d(24) if has["batch_norm"] else nn.LayerNorm(24)
        self.drop = nn.Dropout(0.2 if has["dropout"] else 0.0)
        self.middle = nn.Linear(24, 24)
        self.back = nn.Linear(24, 16)
        if has["tied"]:
            self.back.weight = nn.Parameter(self.embed.weight.detach().t().contiguous())
            self.again = self.back
        if has["frozen"]:
            self.embed.requires_grad_(False)

    def forward(self, batch):
        return self.back(self.middle(self.drop(self.norm(self.embed(batch)))).relu())


class EveryOther(Sampler):
    """A sampler of the program's own, with an order by epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 48

    def __iter__(self):
        order = list(range(rank, 48 * world, world))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


model = Net()
ddp = DistributedDataParallel(model, bucket_cap_mb=0.001, find_unused_parameters=has["unused"])
trained = [each for each in ddp.parameters() if each.requires_grad]
if has["two_optimizers"]:
    optimizers = [torch.optim.AdamW(trained[::2], 1e-3), torch.optim.SGD(trained[1::2], 1e-3, momentum=0.9)]
else:
    optimizers = [getattr(torch.optim, has["optimizer"])(trained, 1e-3)]
parts, per_rank = {}, {}
if has["schedule"] in ("block", "behind", "epoch"):
    parts["scheduler"] = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 500) for each in optimizers]
if has["average"]:
    parts["average"] = torch.optim.swa_utils.AveragedModel(model, use_buffers=False)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7) if has["amp"] else None
if scaler:
    parts["scaler"] = scaler
noise = torch.Generator().manual_seed(500 + rank) if has["noise"] else None
if noise:
    per_rank["noise"] = noise
data = TensorDataset(torch.randn(48 * world, 16, generator=torch.Generator().manual_seed(3)))
sampler = {"distributed": lambda: DistributedSampler(data), "own": EveryOther, "random": lambda: RandomSampler(data)}[has["sampler"]]()
loader = DataLoader(data, batch_size=6, sampler=sampler, num_workers=has["workers"])
for seed in (torch.manual_seed, random.seed, np.random.seed):
    seed(1000 + rank)
judge = DistributedDataParallel(nn.Linear(16, 1)) if has["judge"] else None  # steps when the model has stepped, as a GAN's
of_judge = torch.optim.SGD(judge.parameters(), 1e-3, momentum=0.9) if judge else None
held_out = torch.randn(8, 16, generator=torch.Generator().manual_seed(4))
training = ddprun.recoverable([ddp, *([judge] if judge else [])], [*optimizers, *([of_judge] if judge else [])], parts=parts,
                              per_rank=per_rank)


def augment(batch):
    if has["mixup"]:
        share = float(np.random.beta(0.4, 0.4))
        batch = share * batch + (1 - share) * batch[torch.randperm(len(batch))]
    if has["noise"]:
        batch = batch + torch.randn(batch.shape, generator=noise) * 0.01
    return batch + random.random() * 0.001


def pause():
    """Within a step, between two changes of the state: here a rank may die."""
    if (folder / "paced").exists():
        time.sleep(0.005)


for epoch in training.epochs(has["epochs"]):
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    loop = training.steps(loader, has["per_step"])
    for i, step in enumerate(loop) if has["enumerate"] else ((None, each) for each in loop):
        del i  # which a new process does not have
        if has["augment_before"]:
            random.random(), torch.rand(1), np.random.rand()
        if has["schedule"] == "hand":
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = 1e-3 * (0.5 + 0.5 * math.cos(step.number / 50))
        with step as given:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=has["set_to_none"])
            batches = given if has["per_step"] else [given]
            for number, (batch,) in enumerate(batches):
                ddp.require_backward_grad_sync = number + 1 == len(batches)
                with torch.autocast("cpu", enabled=has["amp"]):
                    batch = augment(batch)
                    loss = (ddp(batch).float() - batch).square().mean() / len(batches)
                (scaler.scale(loss) if scaler else loss).backward()
            if has["sam"]:
                moved = [(each, each.grad * 0.05) for each in trained if each.grad is not None]
                with torch.no_grad():
                    [each.add_(by) for each, by in moved]
                pause()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                (ddp(batch) - batch).square().mean().backward()
                with torch.no_grad():
                    [each.sub_(by) for each, by in moved]
            if has["clip"]:
                for optimizer in optimizers:
                    if scaler:
                        scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(trained, 0.5)
            for optimizer in optimizers:
                scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
            if judge:
                pause()
                of_judge.zero_grad()
                (judge(batch) - loss.detach()).square().mean().backward()
                pause()
                of_judge.step()
            if has["schedule"] == "block":
                [each.step() for each in parts["scheduler"]]
        was_replaceable = training.is_replaceable
        if step.committed:
            if has["schedule"] == "behind":
                [each.step() for each in parts["scheduler"]]
            if has["average"]:
                parts["average"].update_parameters(model)
            if has["evaluates"] and step.number % 4 == 3:
                ddp.eval()
                with torch.no_grad():
                    model(held_out)
                ddp.train()
        if (folder / "paced").exists():
            time.sleep(0.005)
            while training.committed >= int((folder / "may-commit").read_text()):
                time.sleep(0.01)
        if step.committed and has["stops_early"] and training.committed % 7 == 6:
            break
    if has["schedule"] == "epoch":
        [each.step() for each in parts["scheduler"]]

total = hashlib.sha256()
for each in [model, *([parts["average"]] if has["average"] else []), *([judge.module] if judge else [])]:
    for name, tensor in each.state_dict().items():
        total.update(name.encode() + tensor.numpy().tobytes())
for optimizer in optimizers:
    for _, state in sorted(optimizer.state_dict()["state"].items()):
        for name in sorted(state):
            total.update(state[name].numpy().tobytes())
total.update(repr((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist(),
                   noise.get_state().tolist() if has["noise"] else 0)).encode())
(folder / f"end-{rank}").write_text(json.dumps({"hash": total.hexdigest(), "is_replaceable": was_replaceable, "committed":
                                                training.committed}))
'''


def drawn(seed):
    chance = random.Random(seed)
    flip = lambda share=0.5: chance.random() < share
    batch_norm = flip()  # an average of the weights copies the buffers, which differ between ranks: such a part is refused
    has = {"batch_norm": batch_norm, "dropout": flip(), "tied": flip(0.3), "frozen": flip(0.3), "unused": flip(0.2),
           "two_optimizers": flip(0.3), "optimizer": chance.choice(["AdamW", "SGD", "RMSprop", "Adagrad"]),
           "schedule": chance.choice(["none", "hand", "block", "behind", "epoch"]), "average": flip(0.4) and not batch_norm, "amp": flip(0.3),
           "noise": flip(0.4), "sampler": chance.choice(["distributed", "own", "random"]), "workers": chance.choice([0, 0, 0, 1]),
           "mixup": flip(), "enumerate": flip(0.3), "augment_before": flip(), "per_step": chance.choice([None, None, 2]),
           "set_to_none": flip(0.8), "clip": flip(), "evaluates": flip(0.4), "stops_early": flip(0.3)}
    if has["two_optimizers"]:
        has["amp"] = False  # one scaler steps several optimizers otherwise, with one state of its inf checks each
    has.update(judge=flip(0.4), sam=flip(0.3) and not has["amp"])
    return chance, has


class Loops(unittest.TestCase):
    def test_they_end_with_the_same_bits(self):
        python_replace.PROGRAM = PROGRAM
        for seed in SEEDS:
            chance, has = drawn(seed)
            ranks = chance.choice([2, 2, 3])
            per_epoch = -(-48 // (6 * (has["per_step"] or 1)))
            steps = min(per_epoch, 5) if has["stops_early"] else per_epoch
            has["epochs"] = (FIRST + 2 * AHEAD * KILLS) // steps + 2
            with self.subTest(seed=seed, ranks=ranks, **has), tempfile.TemporaryDirectory() as folder:
                self.disturb(Path(folder), chance, ranks, has, seed)

    def disturb(self, folder, chance, ranks, has, seed):
        told = {name: value for name, value in has.items() if value not in (False, None, 0, "none")}
        with python_replace.Training(folder / "plain", ranks, has, f"--standby={ranks}", "--max-restarts=0") as plain, \
                python_replace.Training(folder / "killed", ranks, has, f"--standby={ranks}").paced() as training:
            expected = plain.wait()
            took = python_replace.Replaced.kill(self, training, chance, KILLS)
            (training.folder / "paced").unlink()
            training.allow(sys.maxsize)
            ends, said = training.wait(), training.said()
        self.assertEqual({end["is_replaceable"] for end in ends}, {True}, said)
        self.assertEqual([(end["hash"], end["committed"]) for end in ends], [(end["hash"], end["committed"]) for end in expected],
                         f"seed {seed}: {json.dumps(told)}\n{said}")
        print(f"seed {seed}, {ranks} ranks, {json.dumps(told)}: {len(took)} kills, median {sorted(took)[len(took) // 2]:.0f} ms",
              flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
