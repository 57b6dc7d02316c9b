"""Runs train and its Python twin and compares them bit for bit: each step's loss on each rank, and the final
weights, which also proves that Python's safetensors opens our checkpoints.

  python train_parity.py --train build/bin/ddprun_recorded_train --launcher build/bin/ddprun --nproc 2
"""

import argparse
import glob
import os
import subprocess
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"  # read by the import of torch
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import train_ddp  # noqa: E402
from forked import run_twin  # noqa: E402


def read_losses(path):
    with open(path) as file:
        return [(int(step), float.fromhex(value)) for step, value in map(str.split, file)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--launcher", required=True, help="ddprun or torchrun")
    parser.add_argument("--nproc", type=int, default=2)
    args = parser.parse_args()

    # 1000 samples leave every rank a short last batch, and three ranks a padded one.
    training = ["--epochs", "2", "--batch-size", "64", "--seed", "7", "--limit", "1000"]
    launch = [args.launcher, "--standalone", f"--nproc-per-node={args.nproc}"]
    if os.path.basename(args.launcher) == "torchrun":
        launch += ["--no-python"]

    with tempfile.TemporaryDirectory() as folder:
        ours = os.path.join(folder, "ours")
        theirs = os.path.join(folder, "theirs")
        checkpoints = os.path.join(folder, "checkpoints")
        weights = os.path.join(folder, "weights.safetensors")
        subprocess.run(
            launch + [args.train, *training, "--backend", "gloo", "--checkpoint-dir", checkpoints],
            check=True, env={**os.environ, "DDPRUN_RECORD_LOSSES": ours})
        run_twin(args.nproc, train_ddp.main, *training, "--loss-file", theirs, "--weights-file", weights)

        for rank in range(args.nproc):
            mine = read_losses(f"{ours}.rank{rank}")
            python = read_losses(f"{theirs}.rank{rank}")
            assert len(mine) == len(python) > 0, f"rank {rank}: {len(mine)} steps, Python made {len(python)}"
            for (step, value), (_, expected) in zip(mine, python):
                assert value == expected, f"rank {rank}, step {step}: {value.hex()}, Python {expected.hex()}"

        newest = sorted(glob.glob(os.path.join(checkpoints, "step-*.safetensors")))[-1]
        saved = {name: value for name, value in load_file(newest).items() if name.startswith("model.")}
        expected = load_file(weights)
        assert saved.keys() == expected.keys(), f"{saved.keys()} != {expected.keys()}"
        for name, value in expected.items():
            assert torch.equal(saved[name], value), f"{name} differs"
    print(f"{len(mine)} steps on {args.nproc} ranks and {len(expected)} arrays: equal, bit for bit")


if __name__ == "__main__":
    main()
