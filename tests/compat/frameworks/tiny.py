"""What the small trainings of frameworks share: a model, data, a rank that is killed once, a preemption, and what is compared."""

import json
import os
import pathlib
import signal
import time

import torch

STEPS, SAVED_AT = int(os.environ.get("STEPS", 8)), int(os.environ.get("SAVED_AT", 4))
KILLED_AT = 6  # a step lies between: all ranks have seen the end of the checkpoint
FOLDER = pathlib.Path(os.environ["FOLDER"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))


def data():
    """48 samples: batches of 12 over all ranks, of 1, 2 or 3."""
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(48, 6, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())


def batch(step):
    """This rank's part of a step's 12 samples."""
    inputs, targets = data().tensors
    first = step * 12 % 48 + RANK * (12 // WORLD)
    return inputs[first:first + 12 // WORLD], targets[first:first + 12 // WORLD]


def dropped(inputs):
    """With dropout where the job is preempted: Lightning's own checkpoints lack random numbers."""
    return torch.nn.functional.dropout(inputs, 0.2) if "STEPS" in os.environ else inputs


def begins(step):
    """To be called where a step begins: here the last rank of the first round dies, when the job asks for that, or all wait
    for somebody who kills one or preempts the job."""
    if "TIMES" in os.environ:  # scripts/benchmarks/frameworks.py
        of = os.environ["TORCHELASTIC_RESTART_COUNT"], RANK, os.getpid(), step, time.monotonic_ns()
        with open(os.environ["TIMES"], "a") as file:
            file.write(" ".join(map(str, of)) + "\n")
        if step == KILLED_AT and of[0] == "0":
            (FOLDER / f"held-{RANK}").touch()
            time.sleep(1000)
    if "PREEMPTED" in os.environ:
        (FOLDER / f"began-{RANK}").write_text(str(step))
        if step >= KILLED_AT:
            while not (FOLDER / "go").exists():
                time.sleep(0.01)
            time.sleep(0.01)  # the ranks agree after some time, not after some steps
    if "KILL" in os.environ and step == KILLED_AT and RANK == WORLD - 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def is_over(resumed_from, steps, parameters):
    (FOLDER / f"over-{RANK}").touch()
    if RANK == 0:
        weights = torch.cat([each.detach().reshape(-1) for each in parameters]).tolist()
        (FOLDER / "result.json").write_text(json.dumps({"resumed_from": resumed_from, "steps": steps, "weights": weights}))
    time.sleep(0.1)  # for threads of Gloo's, as ddprun/adapters.py explains
