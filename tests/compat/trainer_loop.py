"""The training of tests/bench/trainer_loop.cpp as one writes it in Python: the loop by hand.

Started by ddprun or torchrun. Writes each batch's loss with all its bits and rank 0's final weights, so that
trainer_parity.py can compare both programs bit for bit.
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

INPUTS, CLASSES = 100, 10


class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(INPUTS, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--update-every", type=int, default=1)
    parser.add_argument("--clip-norm", type=float, default=0)
    parser.add_argument("--loss-file", required=True)
    parser.add_argument("--weights-file", required=True)
    args = parser.parse_args()

    dist.init_process_group("gloo", init_method="env://")
    rank = dist.get_rank()
    torch.manual_seed(100)
    inputs = torch.randn(args.samples, INPUTS)
    targets = torch.randint(CLASSES, (args.samples,))
    sampler = DistributedSampler(range(args.samples), shuffle=True, seed=3)

    torch.manual_seed(1)
    model = DistributedDataParallel(Mlp(args.hidden))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=100000)
    with open(f"{args.loss_file}.rank{rank}", "w") as losses:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            batches = torch.tensor(list(sampler)).split(args.batch_size)
            for first in range(0, len(batches), args.update_every):
                window = batches[first : first + args.update_every]
                optimizer.zero_grad()
                for i, rows in enumerate(window):
                    is_last = i + 1 == len(window)
                    with contextlib.nullcontext() if is_last else model.no_sync():
                        loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
                        (loss / len(window)).backward()
                    losses.write(f"{loss.item().hex()}\n")
                if args.clip_norm > 0:
                    nn.utils.clip_grad_norm_(model.parameters(), args.clip_norm)
                optimizer.step()
                schedule.step()
    if rank == 0:
        save_file(model.module.state_dict(), args.weights_file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
