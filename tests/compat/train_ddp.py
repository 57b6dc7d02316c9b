"""The same training as worker_lib/examples/train.cpp, written in Python the usual way.

Started by ddprun or torchrun. Writes each step's loss with all its bits, as train does, and rank 0's final
weights, so that train_parity.py can compare both programs bit for bit.
"""

import argparse
import gzip
import os

import numpy
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def read_idx(path):
    with gzip.open(path, "rb") as file:
        data = file.read()
    dimensions = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    offset = 4 + 4 * len(dimensions)
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=offset).reshape(dimensions).copy())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--loss-file", required=True)
    parser.add_argument("--weights-file", required=True)
    args = parser.parse_args()

    dist.init_process_group("gloo", init_method="env://")
    rank = dist.get_rank()
    images = read_idx(os.path.join(args.data, "train-images-idx3-ubyte.gz"))[: args.limit].unsqueeze(1)
    labels = read_idx(os.path.join(args.data, "train-labels-idx1-ubyte.gz"))[: args.limit].long()
    sampler = DistributedSampler(range(args.limit), shuffle=True, seed=args.seed)

    torch.manual_seed(args.seed)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = 0
    with open(f"{args.loss_file}.rank{rank}", "w") as losses:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            order = torch.tensor(list(sampler))
            for indices in order.split(args.batch_size):
                pixels = images.index_select(0, indices).to(torch.float32).div_(255).sub_(0.286).div_(0.353)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(pixels), labels.index_select(0, indices))
                loss.backward()
                optimizer.step()
                step += 1
                losses.write(f"{step} {loss.item().hex()}\n")
    if rank == 0:
        weights = {"model." + name: value for name, value in model.module.state_dict().items()}
        save_file(weights, args.weights_file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
