"""Compares the rates of schedule_probe, step by step and bit for bit, with torch.optim.lr_scheduler's.

  python schedule_parity.py build/tests/schedule_probe
"""

import subprocess
import sys
import warnings

import torch
from torch.optim import lr_scheduler as lrs

STEPS = 60

CASES = {
    "step": lambda o: lrs.StepLR(o, 7, 0.3),
    "multi_step": lambda o: lrs.MultiStepLR(o, [3, 11, 11, 30], 0.7),
    "multi_step_from_0": lambda o: lrs.MultiStepLR(o, [0, 5], 0.1),
    "exponential": lambda o: lrs.ExponentialLR(o, 0.93),
    "cosine": lambda o: lrs.CosineAnnealingLR(o, 13, 0.001),
    "cosine_long": lambda o: lrs.CosineAnnealingLR(o, 1000),
    "linear": lambda o: lrs.LinearLR(o, 0.1, 1.0, 9),
    "linear_down": lambda o: lrs.LinearLR(o, 1.0, 0.2, 17),
    "linear_default": lambda o: lrs.LinearLR(o),
    "one_cycle": lambda o: lrs.OneCycleLR(o, [0.3, 0.07], total_steps=STEPS),
    "one_cycle_linear": lambda o: lrs.OneCycleLR(
        o, 0.3, total_steps=STEPS, pct_start=0.45, anneal_strategy="linear", div_factor=10.0, final_div_factor=100.0),
    "one_cycle_three": lambda o: lrs.OneCycleLR(o, 0.3, total_steps=STEPS, three_phase=True),
    "one_cycle_fixed_momentum": lambda o: lrs.OneCycleLR(o, 0.3, total_steps=STEPS, cycle_momentum=False),
    "chained": lambda o: lrs.ChainedScheduler([lrs.LinearLR(o, 0.1, 1.0, 6), lrs.ExponentialLR(o, 0.9)]),
    "chained_three": lambda o: lrs.ChainedScheduler(
        [lrs.CosineAnnealingLR(o, 25), lrs.StepLR(o, 10, 0.5), lrs.MultiStepLR(o, [33], 0.2)]),
    "warm_up_cosine": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.05, 1.0, 8), lrs.CosineAnnealingLR(o, 40, 1e-4)], [8]),
    "sequence_of_four": lambda o: lrs.SequentialLR(
        o, [lrs.ExponentialLR(o, 0.8), lrs.MultiStepLR(o, [0, 2], 0.5), lrs.StepLR(o, 3, 0.9),
            lrs.LinearLR(o, total_iters=4)], [5, 20, 41]),
    "chained_sequence": lambda o: lrs.ChainedScheduler(
        [lrs.SequentialLR(o, [lrs.LinearLR(o), lrs.ExponentialLR(o, 0.95)], [5]), lrs.StepLR(o, 20, 0.1)]),
}


def rates_of(make):
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.037}],
                                lr=0.1, momentum=0.9)
    schedule = make(optimizer)
    for _ in range(STEPS):
        yield [group[what] for group in optimizer.param_groups for what in ("lr", "momentum")]
        optimizer.step()
        schedule.step()


def main():
    warnings.simplefilter("ignore")  # SequentialLR's own constructor sets off two of PyTorch's warnings
    output = subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, text=True, check=True).stdout
    ours = {}
    for line in output.splitlines():
        if line in CASES:
            ours[line] = []
        else:
            ours[list(ours)[-1]].append([float.fromhex(number) for number in line.split()])
    assert ours.keys() == CASES.keys(), f"{ours.keys()} != {CASES.keys()}"
    for name, make in CASES.items():
        theirs = list(rates_of(make))
        assert len(ours[name]) == len(theirs) == STEPS
        for step, (mine, expected) in enumerate(zip(ours[name], theirs)):
            assert mine == expected, (f"{name}, step {step}: {[value.hex() for value in mine]}, "
                                      f"Python {[value.hex() for value in expected]}")
        assert len({tuple(row) for row in theirs}) > 1, f"{name}: nothing moved"
    print(f"{len(CASES)} rules, {STEPS} steps each: equal, bit for bit")


if __name__ == "__main__":
    main()
