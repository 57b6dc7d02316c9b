"""Preemption of Python programs: all ranks of all nodes save and leave after the same step, the exit code asks for a requeue, and the
job that is started again ends with the bits of one that was never preempted.

  python_leave.py DDPRUN DDPCTL [TEST…]

With DDPRUN_TEST_FULL=1 there are 100 moments. DDPRUN_TEST_SEED=N chooses them.
"""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

DDPRUN, DDPCTL = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
FULL = os.environ.get("DDPRUN_TEST_FULL")
SOURCE = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("DDPRUN_TEST_SEED") or random.randrange(10000))
LIMIT_S = 180
PREEMPTED = 113
EPOCHS, SAMPLES, BATCH = 20, 480, 4
FIRST_STEPS = 200  # within which a job is preempted

# `way`: how it leaves. What a rank has passed is one byte each in passed-RANK, so that the test can wait for it.
TRAINING = '''
import hashlib, os, pathlib, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import ddprun

folder, way, epochs, samples, size = pathlib.Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
# The sums of four ranks are exact: a process's first step adds in another order than the later ones, with other buckets.
for each in model.parameters():
    each.register_hook(lambda gradient: (gradient * 1024).round() / 1024)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3)
data = TensorDataset(torch.randn(samples, 16), torch.randint(0, 10, (samples,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=size, sampler=sampler)
torch.manual_seed(1000 + rank)
passed = os.open(folder / f"passed-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
checkpoint = folder / f"checkpoint-{rank}"
state = torch.load(checkpoint, weights_only=False) if checkpoint.exists() else None
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def train(inputs, targets):
    while (folder / "hold").exists() and os.fstat(passed).st_size > 5:
        time.sleep(0.01)
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), targets).backward()
    optimizer.step()


def save(**place):
    if rank == 0 and (folder / "saves long").exists():
        time.sleep(5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **place}, checkpoint.with_suffix(".new"))
    checkpoint.with_suffix(".new").rename(checkpoint)
    with open(folder / f"left-{rank}", "a") as file:
        print(place.get("step", training.committed if way == "recoverable" else None), file=file)


if way == "recoverable":
    training = ddprun.recoverable(ddp, optimizer, on_leave=lambda: save(position=training.position))
    if state:
        training.start_at(state["position"])
    for epoch in training.epochs(epochs):
        sampler.set_epoch(epoch)
        for step in training.steps(loader):
            with step as (inputs, targets):
                train(inputs, targets)
            if step.committed:
                os.write(passed, b".")
else:
    first = state["step"] if state else 0
    if state:
        torch.set_rng_state(state["random"])
    steps = [(epoch, batch) for epoch in range(epochs) for batch in range(len(loader))]
    its_epoch, batches = None, None
    for step, (epoch, batch) in enumerate(steps):
        if step < first:
            continue
        if epoch != its_epoch:
            sampler.set_epoch(epoch)
            its_epoch, batches = epoch, list(sampler)
        train(*data[batches[batch * size:(batch + 1) * size]])
        os.write(passed, b".")
        may_leave = way == "asks" or way == "asks at first" and step < 10
        if may_leave and ddprun.should_leave():
            save(step=step + 1, random=torch.get_rng_state())
            sys.exit()
total = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
for tensor in [*model.parameters(), *(each for its in optimizer.state_dict()["state"].values() for each in its.values())]:
    total.update(tensor.detach().numpy().tobytes())
(folder / f"end-{rank}").write_text(total.hexdigest())
'''


class Job:
    """One or more agents of a job in a folder. `signal_of`: the signal of --preempt-signal."""

    def __init__(self, folder, way, nodes=1, per_node=2, options=("--preempt-signal=USR1",)):
        self.folder, self.world = Path(folder), nodes * per_node
        script = self.folder / "train.py"
        script.write_text(TRAINING)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        self.environment = environment | {"PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "worker_lib/python"), "OMP_NUM_THREADS": "1",
                                          "DDPRUN_CONTROL_DIR": folder}
        self.agents = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for node in range(nodes):
            place = [f"--nnodes={nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
            with open(self.folder / f"told-{node}", "a") as told:
                self.agents.append(subprocess.Popen(
                    [DDPRUN, f"--nproc-per-node={per_node}", *(place if nodes > 1 else ()), "--rdzv-id=job", *options, script,
                     folder, way, *map(str, (EPOCHS, SAMPLES, BATCH))],
                    stdin=subprocess.DEVNULL, stdout=told, stderr=told, env=self.environment, cwd=folder))

    def await_steps(self, count):
        """Until each rank has made so many, or the job has ended."""
        for rank in range(self.world):
            path = self.folder / f"passed-{rank}"
            while not (path.exists() and path.stat().st_size >= count) and all(each.poll() is None for each in self.agents):
                time.sleep(0.001)  # another process's file

    def status(self):
        asked = subprocess.run([DDPCTL, "status", "--json", "job"], capture_output=True, env=self.environment)
        return json.loads(asked.stdout)["nodes"][0] if asked.returncode == 0 else {}

    def pids(self):
        return {worker["rank"]: worker["pid"] for worker in self.status()["workers"]}

    def when(self, holds):
        """The workers' pids by rank when the job's status is so."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            status = self.status()
            if status and holds(status):
                return {worker["rank"]: worker["pid"] for worker in status["workers"]}
            time.sleep(0.05)
        raise AssertionError(self.told())

    def codes(self):
        try:
            return [each.wait(LIMIT_S) for each in self.agents]
        finally:
            for each in self.agents:
                if each.poll() is None:
                    each.kill()
                    each.wait()

    def told(self, node=0):
        return (self.folder / f"told-{node}").read_text()


class Preempted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"seed {SEED}", file=sys.stderr)
        cls.random = random.Random(SEED)
        cls.undisturbed = {}

    def ends(self, folder, world):
        return [(Path(folder) / f"end-{rank}").read_text() for rank in range(world)]

    def undisturbed_ends(self, way, nodes):
        if (way, nodes) not in self.undisturbed:
            with tempfile.TemporaryDirectory() as folder:
                job = Job(folder, way, nodes)
                self.assertEqual(job.codes(), [0] * nodes, job.told())
                self.undisturbed[way, nodes] = self.ends(folder, job.world)
        return self.undisturbed[way, nodes]

    def leave_and_resume(self, way, nodes, told_nodes, options=("--preempt-signal=USR1",), number=signal.SIGUSR1, saves_long=False):
        expected = self.undisturbed_ends(way, nodes)
        with tempfile.TemporaryDirectory() as folder:
            if saves_long:
                (Path(folder) / "saves long").touch()
            job = Job(folder, way, nodes, options=options)
            job.await_steps(self.random.randrange(1, FIRST_STEPS))
            for node in told_nodes:
                job.agents[node].send_signal(number)
            self.assertEqual(job.codes(), [PREEMPTED] * nodes, job.told())
            self.assertIn("PREEMPTED by SIG" + number.name[3:], job.told(told_nodes[0]))
            left = {(Path(folder) / f"left-{rank}").read_text() for rank in range(job.world)}
            self.assertEqual(len(left), 1, f"the ranks left at different steps: {left}")
            self.assertFalse(list(Path(folder).glob("end-*")), "what follows the loop has run")
            again = Job(folder, way, nodes, options=options)
            self.assertEqual(again.codes(), [0] * nodes, again.told())
            self.assertEqual(self.ends(folder, job.world), expected)

    def test_a_loop_that_asks(self):
        for _ in range(25 if FULL else 1):
            self.leave_and_resume("asks", 1, [0])

    def test_a_recoverable_loop(self):
        for _ in range(25 if FULL else 1):
            self.leave_and_resume("recoverable", 1, [0])

    def test_two_nodes_of_which_both_are_told(self):
        for _ in range(25 if FULL else 1):
            self.leave_and_resume("asks", 2, [0, 1])

    def test_two_nodes_of_which_the_leaders_is_told(self):
        for way in ("asks", "recoverable"):
            for _ in range(12 if FULL else 1):
                self.leave_and_resume(way, 2, [0])

    def test_a_save_that_takes_longer_than_a_stop_allows(self):
        """The ranks of the other node have ended long before."""
        for told_nodes in ([0, 1], [0]):
            self.leave_and_resume("asks", 2, told_nodes, ("--preempt-signal=USR1", "--shutdown-timeout=2"), saves_long=True)

    def test_a_preemption_by_SIGTERM(self):
        self.leave_and_resume("recoverable", 1, [0], ("--preempt-signal=TERM",), signal.SIGTERM)

    def test_a_rank_that_dies_at_that_moment(self):
        """It is replaced and leaves with the others, or all are restarted, and the job leaves before it trains again."""
        expected = self.undisturbed_ends("recoverable", 1)
        options = ("--preempt-signal=USR1", "--max-restarts=3", "--standby=2")
        for _ in range(25 if FULL else 1):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "hold").touch()
                job = Job(folder, "recoverable", options=options)
                pids = job.when(lambda status: (status.get("replacement") or {}).get("waiting") == 2)
                (Path(folder) / "hold").unlink()
                time.sleep(self.random.random() * 0.05)
                acts = [lambda: os.kill(pids[1], signal.SIGKILL), lambda: job.agents[0].send_signal(signal.SIGUSR1)]
                self.random.shuffle(acts)
                for act in acts:
                    act()
                    time.sleep(self.random.random() * 0.05)
                self.assertEqual(job.codes(), [PREEMPTED], job.told())
                left = [(Path(folder) / f"left-{rank}") for rank in range(2)]
                saved = {each.read_text() if each.exists() else None for each in left}
                if len(saved) == 2 and None in saved:  # the other rank was leaving already: this one has saved nothing
                    self.assertIn("SIGKILL", job.told())
                    continue
                self.assertEqual(len(saved), 1, job.told())
                again = Job(folder, "recoverable", options=options)
                self.assertEqual(again.codes(), [0], again.told())
                self.assertEqual(self.ends(folder, 2), expected)

    def test_a_job_that_comes_to_its_end_after_a_notice_has_succeeded(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, "asks at first")
            job.await_steps(15)
            job.agents[0].send_signal(signal.SIGUSR1)
            self.assertEqual(job.codes(), [0], job.told())
            self.assertIn("the job is preempted", job.told())
            self.assertEqual(self.ends(folder, 2), self.undisturbed_ends("ignores", 1))

    def test_a_program_that_does_not_react_is_named_and_runs_on(self):
        self.do_not_react(lambda job: None)

    def test_standbys_that_do_not_react(self):
        def restart(job):
            pids = job.when(lambda status: (status.get("standbys") or {}).get("waiting") == 2)
            os.kill(pids[1], signal.SIGKILL)
            job.when(lambda status: {its["pid"] for its in status.get("workers", ())}.isdisjoint({0, *pids.values()}))
        self.do_not_react(restart, "--standby=2", "--max-restarts=1")

    def do_not_react(self, act, *options):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "hold").touch()
            job = Job(folder, "ignores", options=("--preempt-signal=USR1", *options))
            job.await_steps(5)
            act(job)
            job.agents[0].send_signal(signal.SIGUSR1)
            for pid in job.pids().values():  # as Slurm does
                os.kill(pid, signal.SIGUSR1)
            while "react" not in job.told():
                time.sleep(0.01)  # for another process's word
            (Path(folder) / "hold").unlink()
            self.assertEqual(job.codes(), [0], job.told())
            self.assertIn("ranks 0 and 1 do not react to the preemption", job.told())
            self.assertEqual(self.ends(folder, 2), self.undisturbed_ends("ignores", 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
