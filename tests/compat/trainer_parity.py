"""Runs a training by the Trainer and by the same loop written in Python, and compares them bit for bit: each
batch's loss on each rank and the final weights, with gradient accumulation (whose last window of an epoch is short),
a one-cycle schedule that moves rate and momentum, and clipping. TensorBoard then reads what the Trainer's callback
wrote.

  python trainer_parity.py --trainer build/bench/trainer_loop --launcher build/bin/ddprun --nproc 2
"""

import argparse
import json
import logging
import os
import struct
import subprocess
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"  # read by the import of torch
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

import trainer_loop  # noqa: E402
from forked import run_twin  # noqa: E402

EPOCHS = 2


def read_losses(path):
    with open(path) as file:
        return [float.fromhex(line) for line in file]


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def check_tensorboard(folder, epoch_losses, steps_per_epoch):
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    assert set(events.Tags()["scalars"]) >= {"loss/epoch", "learning_rate"}, events.Tags()
    written = [(event.step, event.value) for event in events.Scalars("loss/epoch")]
    assert written == [(steps_per_epoch * (i + 1), as_float(loss)) for i, loss in enumerate(epoch_losses)], written


def compare(args, more, folder):
    training = ["--epochs", str(EPOCHS), "--samples", "3000", "--batch-size", "32", *more]
    launch = [args.launcher, "--standalone", f"--nproc-per-node={args.nproc}"]
    ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "theirs")
    charts = os.path.join(folder, "charts")
    output = subprocess.run(
        launch + [args.trainer, *training, "--loss-file", ours, "--weights-file", f"{ours}.weights",
                  "--tensorboard", charts], check=True, stdout=subprocess.PIPE).stdout
    run_twin(args.nproc, trainer_loop.main, *training, "--loss-file", theirs, "--weights-file", f"{theirs}.weights")

    for rank in range(args.nproc):
        mine, python = read_losses(f"{ours}.rank{rank}"), read_losses(f"{theirs}.rank{rank}")
        assert len(mine) == len(python) > 0, f"rank {rank}: {len(mine)} batches, Python had {len(python)}"
        for number, (value, expected) in enumerate(zip(mine, python)):
            assert value == expected, f"rank {rank}, batch {number}: {value.hex()}, Python {expected.hex()}"
    saved, expected = load_file(f"{ours}.weights"), load_file(f"{theirs}.weights")
    assert saved.keys() == expected.keys(), f"{saved.keys()} != {expected.keys()}"
    for name, value in expected.items():
        assert torch.equal(saved[name], value), f"{name} differs"

    window = int(more[1])
    batches = len(mine) // EPOCHS
    check_tensorboard(charts, json.loads(output)["epoch_losses"], -(-batches // window))
    return len(mine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--nproc", type=int, default=2)
    args = parser.parse_args()
    for more in (["--update-every", "1"], ["--update-every", "3", "--clip-norm", "0.05"]):
        with tempfile.TemporaryDirectory() as folder:
            batches = compare(args, more, folder)
        print(f"{' '.join(more)}: {batches} batches on {args.nproc} ranks: equal, bit for bit")


if __name__ == "__main__":
    main()
