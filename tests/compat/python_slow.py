"""Ranks that compute slowly, in unmodified Python and in C++: which one it is, how late it comes, and in which line; and that no
rank of a balanced job is named.

  python_slow.py DDPRUN DDPCTL C++_WORKER PYTHON_PACKAGES_OF_THE_BUILD|none FAKE_GPU|none [CLASS…]

A minute is twelve seconds here. With DDPRUN_TEST_FULL=1 it is one, each slow rank is named five times, and each balanced job
runs for ten minutes.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

DDPRUN, DDPCTL, WORKER = (Path(sys.argv.pop(1)).resolve() for _ in range(3))
PACKAGES, FAKE_GPU = (None if each == "none" else Path(each).resolve() for each in (sys.argv.pop(1), sys.argv.pop(1)))
FULL = os.environ.get("DDPRUN_TEST_FULL")
SOURCE = Path(__file__).resolve().parents[2]
MINUTE_S = 60 if FULL else 12
TIMES = 5 if FULL else 1
NAMED_WITHIN_S = 90 if FULL else 60  # a busy machine takes some seconds to begin
BALANCED_S = 600 if FULL else 24

LOADER = '''
import time


def next_batch(by):
    if by:
        time.sleep(by)
'''

# A step takes 40 ms, most of which a rank sleeps, so that a machine with two processors has several of them.
TRAINING = '''
import os, random, subprocess, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from loader import next_batch

kind = sys.argv[1]
if os.environ["BACKEND"] == "shm":
    import ddprun.torch
torch.set_num_threads(1)
dist.init_process_group(os.environ["BACKEND"])
rank, last = dist.get_rank(), dist.get_world_size() - 1
device = f"cuda:{os.environ['LOCAL_RANK']}" if os.environ["BACKEND"] == "nccl" else "cpu"
if device != "cpu":
    torch.cuda.set_device(device)
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to(device))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.ones(64)


def spin():  # the processor of one rank is busy
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


batches = iter(torch.utils.data.DataLoader(Slow(), num_workers=1)) if kind == "loader" and rank == last else None
spinning = spin() if kind == "busy" and rank == last else []
try:
    for step in range(1_000_000):
        if kind == "sleep":
            next_batch(0.03 * (rank == last))
        if kind == "node":
            next_batch(0.03 * (rank >= dist.get_world_size() // 2))
        if batches:
            next(batches)
        if kind == "busy":
            compute(0.02)
        if kind == "uneven":
            time.sleep(random.uniform(0, 0.04))
        if kind == "turns" and step // 20 % (last + 1) == rank:
            time.sleep(0.03)
        if kind == "logs" and rank == 0 and step % 10 == 0:
            time.sleep(0.05)
        if kind == "evaluates" and rank == 0 and step % 100 == 99:
            time.sleep(1)
        if kind == "computes":  # more than there are processors
            compute(0.03)
        time.sleep(0.02)
        loss = model(torch.randn(8, 64).to(device)).square().mean()
        if kind == "accumulates" and step % 4:
            with model.no_sync():
                loss.backward()
            continue
        time.sleep(0.01)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    for each in spinning:
        each.kill()
'''


class Job:
    def __init__(self, kind, nodes=1, per_node=2, backend="gloo", program=None, options=()):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        (self.folder / "train.py").write_text(TRAINING)
        (self.folder / "loader.py").write_text(LOADER)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        self.environment = environment | {
            "PYTHON_EXEC": sys.executable, "PYTHONPATH": str(PACKAGES or SOURCE / "worker_lib/python"),
            "OMP_NUM_THREADS": "1", "DDPRUN_CONTROL_DIR": str(self.folder), "BACKEND": backend,
            "DDPRUN_TEST_MINUTE_MS": str(MINUTE_S * 1000), "DDPRUN_TEST_SECONDS": "100000"}
        if backend == "nccl":  # tests/support/fake_gpu
            its = [str(FAKE_GPU / name) for name in ("libcudart.so.13", "libcuda.so.1", "libnccl.so.2")]
            self.environment["LD_PRELOAD"] = ":".join(its)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.agents = []
        for node in range(nodes):
            command = [DDPRUN, f"--nproc-per-node={per_node}", f"--events={self.folder}/events-{node}", "--shutdown-timeout=1", *options]
            command += [f"--nnodes={nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"] * (nodes > 1)
            command += program or [str(self.folder / "train.py"), kind]
            with open(self.folder / f"told-{node}", "w") as told:
                self.agents.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=told, env=self.environment))
        self.began = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.agents:
            if each.poll() is None:
                each.terminate()
        for each in self.agents:
            each.wait(60)
        self.temporary.cleanup()

    def told(self):
        return "\n".join(path.read_text() for path in self.folder.glob("told-*"))

    def slow(self):
        """The events of the first node."""
        events = self.folder / "events-0"
        lines = events.read_text().splitlines() if events.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] == "slow"]

    def status(self):
        asked = subprocess.run([DDPCTL, "status", "--json", str(self.agents[0].pid)], env=self.environment, capture_output=True, text=True)
        if asked.returncode != 0:
            raise AssertionError(f"{asked.stderr}\n{self.told()}")
        return json.loads(asked.stdout)

    def await_slow(self):
        while time.monotonic() - self.began < NAMED_WITHIN_S:
            if slow := self.slow():
                return slow[0]
            if any(each.poll() is not None for each in self.agents):
                break
            time.sleep(0.1)  # another process's file
        known = self.status()["nodes"][0]["rank_times"] if self.agents[0].poll() is None else "the job has ended"
        raise AssertionError(f"no rank was named within {NAMED_WITHIN_S} s\n{self.told()}\n{known}")


class Named(unittest.TestCase):
    def named(self, rank, where=None, **job):
        for _ in range(TIMES):
            with Job(**job) as its:
                slow = its.await_slow()
                took = time.monotonic() - its.began
                print(f"{took:.0f} s: {slow['sentence']}", flush=True)
                self.assertEqual(slow["rank"], rank, its.told())
                self.assertGreaterEqual(slow["share"], 0.8)
                self.assertGreater(slow["lag_us"], 10_000)
                if where is not None:
                    self.assertRegex(slow["where"], where)
                self.assertIn(slow["sentence"], its.told())
                node = its.status()["nodes"][0]
                self.assertEqual([each["rank"] for each in node["slow"]], [rank])
                times = {each["rank"]: each for each in node["rank_times"]}
                self.assertGreater(times[0]["waiting"], 0.1, times)
                self.assertLess(times[rank]["waiting"], times[0]["waiting"], times)
                screen = subprocess.run([DDPCTL, "status", str(its.agents[0].pid)], env=its.environment, capture_output=True, text=True).stdout
                self.assertIn("SLOW: " + slow["sentence"].partition(" comes last")[0], screen)

    def test_a_rank_that_sleeps(self):
        self.named(1, where=r"^next_batch \(loader.py:7\)$", kind="sleep")

    def test_a_rank_that_sleeps_on_the_second_node(self):
        self.named(3, where=r"^next_batch \(loader.py:7\)$", kind="sleep", nodes=2)

    def test_both_ranks_of_a_slow_node(self):
        with Job("node", nodes=2) as job:
            job.await_slow()
            while len(job.slow()) < 2 and time.monotonic() - job.began < NAMED_WITHIN_S:
                time.sleep(0.1)  # another process's file
            self.assertEqual({(each["rank"], each["where"]) for each in job.slow()},
                             {(rank, "next_batch (loader.py:7)") for rank in (2, 3)}, job.told())

    def test_a_rank_whose_loader_is_slow(self):
        self.named(1, where=r"^<module> \(train.py:\d+\)$", kind="loader")

    def test_a_rank_whose_processor_is_busy(self):
        self.named(1, kind="busy")

    @unittest.skipUnless(PACKAGES, "without ddprun.torch")
    def test_a_rank_over_shared_memory(self):
        self.named(1, where=r"^next_batch \(loader.py:7\)$", kind="sleep", backend="shm")

    @unittest.skipUnless(FAKE_GPU, "without the fake GPU")
    def test_a_rank_over_nccl(self):
        self.named(1, where=r"^next_batch \(loader.py:7\)$", kind="sleep", backend="nccl", options=["--hang-timeout=600"])

    def test_a_rank_of_a_program_in_cpp(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend):
                self.named(2, kind="lags", per_node=3, program=[str(WORKER), backend, "lags"])


class Balanced(unittest.TestCase):
    """No rank is named."""

    KINDS = ("even", "uneven", "turns", "logs", "evaluates", "computes", "accumulates")

    def test_no_rank_is_named(self):
        # All at once, so that the processors are busy.
        jobs = {kind: Job(kind, per_node=4 if kind == "computes" else 2) for kind in self.KINDS}
        jobs["two nodes"] = Job("uneven", nodes=2)
        try:
            end = time.monotonic() + BALANCED_S + 15
            while time.monotonic() < end:
                time.sleep(1)
                for kind, job in jobs.items():
                    self.assertEqual(job.slow(), [], kind)
                    self.assertEqual([each.poll() for each in job.agents], [None] * len(job.agents), job.told())
            for kind, job in jobs.items():  # on a machine that is so busy looks are late
                deadline = time.monotonic() + 60
                while not job.status()["nodes"][0]["rank_times"]:
                    self.assertLess(time.monotonic(), deadline, f"nothing is known of {kind}")
                    time.sleep(0.2)
                self.assertEqual(job.slow(), [], kind)
        finally:
            for job in jobs.values():
                job.__exit__()

    def test_nothing_is_looked_for(self):
        with Job("sleep", options=["--slow-ranks=off"]) as job:
            while time.monotonic() - job.began < 2 * MINUTE_S:
                time.sleep(1)
                self.assertEqual(job.slow(), [])
            self.assertEqual(job.status()["nodes"][0]["rank_times"], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
