"""The Python half of the step-time benchmark: tests/bench/ddp_step.cpp does the same in C++."""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10


class Mlp(nn.Module):
    def __init__(self, width, hidden, batch):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, CLASSES)
        self.width, self.batch = width, batch

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))

    def inputs(self):
        return torch.randn(self.batch, self.width)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, 64)
        self.fc2 = nn.Linear(64, CLASSES)

    def forward(self, x):
        y = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        z = torch.max_pool2d(torch.relu(self.conv2(y)), 2)
        return self.fc2(torch.relu(self.fc1(z.flatten(1))))

    def inputs(self):
        return torch.randn(32, 1, 28, 28)


class Embedding(nn.Module):
    WORDS = 20000

    def __init__(self, is_sparse):
        super().__init__()
        self.bag = nn.EmbeddingBag(self.WORDS, 64, sparse=is_sparse, mode="sum")
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.fc(self.bag(x))

    def inputs(self):
        return torch.randint(self.WORDS, (64, 30))


class Lstm(nn.Module):
    LENGTH = 20

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, num_layers=2, batch_first=True)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.fc(self.lstm(x)[0].select(1, self.LENGTH - 1))

    def inputs(self):
        return torch.randn(16, self.LENGTH, 32)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.width, self.heads = width, heads

    def forward(self, x):
        batch, length = x.shape[:2]
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, self.width // self.heads).transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        y = x + self.out(attended.transpose(1, 2).reshape(batch, length, self.width))
        return y + self.down(nn.functional.gelu(self.up(self.norm2(y))))


class Transformer(nn.Module):
    WORDS = 1000

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(self.WORDS, 64)
        self.block1 = Block(64, 4)
        self.block2 = Block(64, 4)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.fc(self.block2(self.block1(self.tokens(x))).mean(1))

    def inputs(self):
        return torch.randint(self.WORDS, (8, 32))


# name, how it is made, steps, momentum
MLPS = [
    ("mlp_64", lambda: Mlp(784, 64, 64), 600, 0.9),
    ("mlp_256", lambda: Mlp(784, 256, 64), 300, 0.9),
    ("mlp_1024", lambda: Mlp(784, 1024, 64), 60, 0.9),
]


def models(with_sparse):
    return [
        ("tiny_mlp", lambda: Mlp(32, 32, 16), 1000, 0.9),
        ("cnn", Cnn, 100, 0.9),
        ("wide_mlp", lambda: Mlp(784, 1024, 64), 60, 0.9),
        ("embedding", lambda: Embedding(with_sparse), 400, 0.0),
        ("lstm", Lstm, 150, 0.9),
        ("transformer", Transformer, 200, 0.9),
    ]


def measure(name, make, steps, momentum, warm_up, device):
    torch.manual_seed(1)
    model = DistributedDataParallel(make().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    torch.manual_seed(100 + dist.get_rank())
    inputs = model.module.inputs().to(device)
    targets = torch.randint(CLASSES, (inputs.shape[0],)).to(device)

    times = []
    for i in range(warm_up + steps):
        begun = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        last_loss = loss.item()
        passed = time.perf_counter_ns() - begun
        if i >= warm_up:
            times.append(passed / 1000)
    if dist.get_rank() == 0:
        print(
            json.dumps(
                {
                    "program": "python",
                    "model": name,
                    "parameters": sum(parameter.numel() for parameter in model.parameters()),
                    "ranks": dist.get_world_size(),
                    "steps": steps,
                    "median_us": round(statistics.median(times), 2),
                    "least_us": round(min(times), 2),
                    "loss": float(f"{last_loss:.9g}"),
                }
            ),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("--mlps", action="store_true")
    parser.add_argument("--backend", choices=["gloo", "nccl", "shm"], default="gloo")
    args = parser.parse_args()

    device = torch.device("cpu")
    if args.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if args.backend == "shm":
        import ddprun.torch  # noqa: F401
    dist.init_process_group(args.backend, init_method="env://")
    for name, make, steps, momentum in MLPS if args.mlps else models(with_sparse=args.backend != "nccl"):
        if args.model in (None, name):
            measure(name, make, max(10, round(steps * args.share)), momentum, args.warm_up, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
