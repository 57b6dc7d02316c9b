"""Runs optim_cases and the same trainings by torch.optim, and compares them bit for bit: after half of the steps the
checkpoint that C++ has written with Python's parameters and state_dict(), at the end what a C++ optimizer has made that
went on from that checkpoint with parameters and gradients.

  python optim_parity.py build/tests/optim_cases

With DDPRUN_TEST_FULL=1 a training has 500 steps.
"""

import os
import subprocess
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"  # read by the import of torch, and by C++
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

STEPS = 500 if os.environ.get("DDPRUN_TEST_FULL") else 200
LR = 0.01
WAYS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def sgd(**options):
    return lambda groups, **way: torch.optim.SGD(groups, lr=LR, **options, **way)


def adam(**options):
    return lambda groups, **way: torch.optim.Adam(groups, lr=LR, **options, **way)


def adamw(**options):
    return lambda groups, **way: torch.optim.AdamW(groups, lr=LR, **options, **way)


CASES = {
    "sgd": sgd(),
    "sgd_decay": sgd(weight_decay=0.03, maximize=True),
    "sgd_momentum": sgd(momentum=0.9),
    "sgd_dampening": sgd(momentum=0.9, dampening=0.1, weight_decay=0.03),
    "sgd_nesterov": sgd(momentum=0.9, nesterov=True),
    "sgd_nesterov_decay": sgd(momentum=0.9, nesterov=True, weight_decay=0.03),
    "sgd_all": sgd(momentum=0.7, nesterov=True, weight_decay=0.03, maximize=True),
    "adam": adam(),
    "adam_betas": adam(betas=(0.85, 0.8), eps=1e-5),  # sqrt() has other bits than Python's ** 0.5 from step 163 on
    "adam_decay": adam(weight_decay=0.03),
    "adam_amsgrad": adam(amsgrad=True),
    "adam_maximize": adam(maximize=True),
    "adam_all": adam(weight_decay=0.03, amsgrad=True, maximize=True),
    "adamw": adamw(),
    "adamw_no_decay": adamw(weight_decay=0),
    "adamw_all": adamw(weight_decay=0.03, amsgrad=True, maximize=True),
}


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Training:
    def __init__(self, name, way):
        torch.manual_seed(7)
        self.parameters = []
        self.add(7, 5)
        self.add(33)
        self.add(2, 3, 4, 5, memory_format=torch.channels_last)
        self.add()
        self.add(11, dtype=torch.float64)
        self.add(3, 130)
        is_fused_sgd = way == "fused" and name.startswith("sgd")
        if not is_fused_sgd:
            self.add(17, dtype=torch.bfloat16)
        if way != "fused":
            self.add(6, dtype=torch.complex64)
        self.begins_later = not is_fused_sgd
        middle = len(self.parameters) // 2
        groups = [{"params": self.parameters[:middle]}, {"params": self.parameters[middle:], "lr": LR / 2}]
        self.optimizer = CASES[name](groups, **WAYS[way])

    def add(self, *sizes, dtype=torch.float32, memory_format=torch.contiguous_format):
        values = torch.randn(sizes, dtype=dtype).contiguous(memory_format=memory_format)
        self.parameters.append(torch.nn.Parameter(values))

    def train(self, start, end):
        for step in range(start, end):
            for i, parameter in enumerate(self.parameters):
                drawn = torch.randn(parameter.shape, dtype=parameter.dtype)
                if i == 1 and self.begins_later and step < 3:
                    continue
                parameter.grad = torch.empty_like(parameter).copy_(drawn)
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.99 if step % 2 == 0 else 1.01
            self.optimizer.step()

    def checkpoint(self):
        """What the file has to hold, by its names there."""
        arrays = {f"model.{i}": parameter for i, parameter in enumerate(self.parameters)}
        for i, state in self.optimizer.state_dict()["state"].items():
            arrays |= {f"optimizer.{i}.{what}": value for what, value in state.items() if value is not None}
        return arrays


def differences(found, expected):
    for name in sorted(found.keys() | expected.keys()):
        if name not in found or name not in expected:
            yield f"{name} is only in {'the checkpoint' if name in found else 'Python'}"
        elif found[name].dtype != expected[name].dtype or raw(found[name]) != raw(expected[name]):
            yield f"{name} is {found[name].flatten()[:4]}, in Python {expected[name].detach().flatten()[:4]}"


def main():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder, str(STEPS)], check=True, timeout=600)
        for case in [f"{name}.{way}" for name in CASES for way in WAYS]:
            training = Training(*case.split("."))
            training.train(0, STEPS // 2)
            saved = load_file(os.path.join(folder, case, "latest.safetensors"))
            found = {name: value for name, value in saved.items() if not name.startswith("rng.")}
            failures += [f"{case}, the checkpoint: {difference}" for difference in
                         differences(found, training.checkpoint())]
            training.train(STEPS // 2, STEPS)
            with open(os.path.join(folder, case + ".end"), "rb") as file:
                if file.read() != b"".join(raw(t) for p in training.parameters for t in (p, p.grad)):
                    failures.append(f"{case}: other bits at the end")
    assert not failures, "\n" + "\n".join(failures)
    print(f"{', '.join(CASES)}: {STEPS} steps by {', '.join(WAYS)}: equal, bit for bit")


if __name__ == "__main__":
    main()
