"""ddp_cases.cpp in Python: keep the two alike, line by line."""

import contextlib
import math
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

BATCH = 6
INPUTS = 12
CLASSES = 5
WORDS = 40


class Model(nn.Module):
    def inputs(self):
        return torch.randn(BATCH, INPUTS)


class Mlp(Model):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(INPUTS, 33)
        self.fc2 = nn.Linear(33, 17)
        self.fc3 = nn.Linear(17, CLASSES)

    def forward(self, x, step):
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class Branches(Model):
    def __init__(self):
        super().__init__()
        self.main = nn.Linear(INPUTS, CLASSES)
        self.side = nn.Linear(INPUTS, CLASSES)
        self.never = nn.Linear(INPUTS, CLASSES)

    def forward(self, x, step):
        return self.main(x) if step % 2 == 0 else self.main(x) + self.side(x)


class Reused(Model):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(INPUTS, 20)
        self.twice = nn.Linear(20, 20)
        self.never = nn.Linear(20, 20)
        self.out = nn.Linear(20, CLASSES)

    def forward(self, x, step):
        return self.out(torch.tanh(self.twice(torch.tanh(self.twice(self.input(x))))))


class Cnn(Model):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 4, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 16, CLASSES)

    def forward(self, x, step):
        y = torch.relu(self.norm1(self.conv1(x)))
        return self.fc(torch.relu(self.norm2(self.conv2(y))).flatten(1))

    def inputs(self):
        return torch.randn(BATCH, 1, 4, 4)


class Words(Model):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, sparse=True)
        self.bag = nn.EmbeddingBag(WORDS, 8, sparse=True, mode="sum")
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x, step):
        return self.fc(self.words(x).mean(1) + self.bag(x))

    def inputs(self):
        return torch.randint(WORDS, (BATCH, 7))


def sgd(**options):
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, **options)


@dataclass
class Recipe:
    name: str
    model: Callable = Mlp
    options: dict = field(default_factory=dict)
    hook: Optional[Callable[[], tuple[Any, Callable]]] = None
    optimizer: Callable = sgd()
    steps: int = 6
    accumulated: int = 1
    clip: Optional[Callable] = None
    autocast: Optional[torch.dtype] = None
    is_scaled: bool = False
    join: Optional[dict] = None


def power_sgd(**options):
    return lambda: (powerSGD_hook.PowerSGDState(None, **options), powerSGD_hook.powerSGD_hook)


def clip_norm(limit, norm_type):
    return lambda parameters: nn.utils.clip_grad_norm_(parameters, limit, norm_type)


RECIPES = [
    Recipe("plain"),
    Recipe("accumulation", accumulated=3),
    Recipe("unused", model=Branches, options={"find_unused_parameters": True}),
    Recipe("batch_norm", model=Cnn),
    Recipe("momentum", optimizer=sgd(momentum=0.9)),
    Recipe("nesterov", optimizer=sgd(momentum=0.9, nesterov=True, weight_decay=0.01)),
    Recipe("dampening", optimizer=sgd(momentum=0.9, dampening=0.1)),
    Recipe("rmsprop", optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9)),
    Recipe("adagrad", optimizer=lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)),
    Recipe("sparse", model=Words),
    Recipe("bucket_views", options={"gradient_as_bucket_view": True}),
    Recipe("bucket_views_accumulated", options={"gradient_as_bucket_view": True}, accumulated=2),
    Recipe("small_buckets", options={"bucket_cap_mb": 1 / 1024}),
    Recipe("static_graph", model=Reused, options={"static_graph": True}),
    Recipe("all_reduce_hook", hook=lambda: (None, default_hooks.allreduce_hook)),
    Recipe("fp16_hook", hook=lambda: (None, default_hooks.fp16_compress_hook)),
    Recipe("bf16_hook", hook=lambda: (None, default_hooks.bf16_compress_hook)),
    Recipe("power_sgd", hook=power_sgd(matrix_approximation_rank=2, start_powerSGD_iter=2), steps=8),
    Recipe("power_sgd_rank_4",
           hook=power_sgd(matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5), steps=8),
    Recipe("clip_norm", clip=clip_norm(0.1, 2)),
    Recipe("clip_norm_inf", clip=clip_norm(0.01, math.inf)),
    Recipe("clip_value", clip=lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01)),
    Recipe("autocast", autocast=torch.bfloat16),
    Recipe("scaler", autocast=torch.float16, is_scaled=True),
    Recipe("join", join={}),
    Recipe("join_active", model=Branches, options={"find_unused_parameters": True},
           join={"divide_by_initial_world_size": False}),
    Recipe("join_batch_norm", model=Cnn, join={}),
    Recipe("adam", optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01)),
    Recipe("adamw", optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True)),
    Recipe("fused_sgd", options={"gradient_as_bucket_view": True}, optimizer=sgd(momentum=0.9, fused=True)),
    Recipe("fused_adam_scaler", optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
           autocast=torch.float16, is_scaled=True),
]


class Run:
    def __init__(self, recipe, losses):
        self.recipe = recipe
        self.losses = losses
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4194304, growth_interval=2)
        torch.manual_seed(1)
        self.model = DistributedDataParallel(recipe.model(), **recipe.options)
        if recipe.hook is not None:
            self.model.register_comm_hook(*recipe.hook())
        self.parameters = list(self.model.parameters())
        self.optimizer = recipe.optimizer(self.parameters)
        torch.manual_seed(100 + dist.get_rank())
        if recipe.join is not None:
            with self.model.join(**recipe.join):
                self.train(recipe.steps - dist.get_rank())
        else:
            self.train(recipe.steps)

    def write_weights(self, path):
        with open(path, "wb") as file:
            for tensor in [*self.parameters, *self.model.buffers()]:
                file.write(tensor.detach().contiguous().numpy().tobytes())

    def train(self, steps):
        for step in range(steps):
            self.optimizer.zero_grad()
            for _ in range(1, self.recipe.accumulated):
                with self.model.no_sync():
                    self.backward(step)
            loss = self.backward(step)
            if self.recipe.is_scaled:
                self.scaler.unscale_(self.optimizer)
            if self.recipe.clip is not None:
                self.recipe.clip(self.parameters)
            if self.recipe.is_scaled:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.losses.write(f"{self.recipe.name} {step} {loss.item().hex()}\n")

    def backward(self, step):
        x = self.model.module.inputs()
        y = torch.randint(CLASSES, (BATCH,))
        autocast = contextlib.nullcontext()
        if self.recipe.autocast is not None:
            autocast = torch.autocast("cpu", self.recipe.autocast)
        with autocast:
            loss = nn.functional.cross_entropy(self.model(x, step), y)
        (self.scaler.scale(loss) if self.recipe.is_scaled else loss).backward()
        return loss


def main():
    prefix = sys.argv[1]
    dist.init_process_group("gloo", init_method="env://")
    path = f"{prefix}.rank{dist.get_rank()}"
    with open(path, "w") as losses:
        for recipe in RECIPES:
            Run(recipe, losses).write_weights(f"{path}.{recipe.name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
