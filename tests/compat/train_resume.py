"""A rank of train is killed in the middle of an epoch; the next run continues from the checkpoint. The final
checkpoint must equal that of an uninterrupted run in every byte, whichever rank died and wherever.

The ranks are started by hand here (the environment variables and nothing else), which also proves that a
group without a launcher works. The survivor must end by itself, with exit code 1 and its error file written.

  python train_resume.py --train build/bin/ddprun_recorded_train
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

WORLD = 2
DEADLINE_S = 60
TRAINING = ["--epochs", "2", "--batch-size", "8", "--seed", "3", "--limit", "250", "--checkpoint-every", "4",
            "--backend", "gloo"]  # 16 steps in each epoch
FINAL = "step-000000000032.safetensors"


class Group:
    """One life of the group: WORLD processes that meet at a port of their own."""

    def __init__(self, train, folder, name):
        # Held, bound and never listening, for the life of the group: rank 0 binds it too (SO_REUSEADDR).
        self.port = socket.socket()
        self.port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port.bind(("127.0.0.1", 0))
        self.losses = os.path.join(folder, name + ".losses")
        self.error_files = [os.path.join(folder, f"{name}.error{rank}") for rank in range(WORLD)]
        self.ranks = []
        for rank in range(WORLD):
            environment = dict(
                os.environ, OMP_NUM_THREADS="1", RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port.getsockname()[1]),
                TORCHELASTIC_ERROR_FILE=self.error_files[rank], DDPRUN_RECORD_LOSSES=self.losses)
            command = [train, *TRAINING, "--checkpoint-dir", os.path.join(folder, "checkpoints")]
            self.ranks.append(subprocess.Popen(command, env=environment))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.port.close()

    def wait_for_step(self, step):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert all(process.poll() is None for process in self.ranks), "the group ended too early"
            try:
                with open(self.losses + ".rank0") as file:
                    if any(int(line.split()[0]) >= step for line in file if line.endswith("\n")):
                        return
            except FileNotFoundError:
                pass
            time.sleep(0.005)
        raise AssertionError(f"step {step} was not reached in {DEADLINE_S} s")

    def finish(self):
        codes = [process.wait(timeout=DEADLINE_S) for process in self.ranks]
        assert codes == [0] * WORLD, f"exit codes {codes}"


def final_checkpoint(folder):
    with open(os.path.join(folder, "checkpoints", FINAL), "rb") as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        with Group(args.train, folder, "whole") as group:
            group.finish()
        expected = final_checkpoint(folder)

    # In the middle of an epoch, at its end, and right before the last step.
    kills = [(1, 6), (0, 9), (1, 16), (0, 21), (1, 31)] if os.environ.get("DDPRUN_TEST_FULL") else [(1, 16), (0, 21), (1, 31)]
    for victim, step in kills:
        with tempfile.TemporaryDirectory() as folder:
            with Group(args.train, folder, "killed") as group:
                group.wait_for_step(step)
                os.kill(group.ranks[victim].pid, signal.SIGKILL)
                survivor = 1 - victim
                code = group.ranks[survivor].wait(timeout=DEADLINE_S)
                assert code == 1, f"the survivor ended with {code}"
                with open(group.error_files[survivor]) as file:
                    message = json.load(file)["message"]
                assert message["message"] and message["extraInfo"]["timestamp"].isdigit(), message
            with Group(args.train, folder, "resumed") as group:
                group.finish()
                # None: the last step was saved before the kill.
                losses = Path(group.losses + ".rank0")
                lines = losses.read_text().splitlines() if losses.exists() else []
            first = int(lines[0].split()[0]) if lines else "the last"
            assert first == "the last" or first > 4, f"rank {victim} killed at step {step}: the next run began at step {first}"
            assert final_checkpoint(folder) == expected, f"rank {victim} killed at step {step}: other bits"
        print(f"rank {victim} killed after step {step}, continued with step {first}: the same final checkpoint")


if __name__ == "__main__":
    main()
