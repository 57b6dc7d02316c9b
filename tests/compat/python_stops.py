"""Planned stops of Python programs that know nothing of ddprun: all ranks of all nodes are stopped between the same two steps.

  python_stops.py DDPRUN DDPCTL [TEST…]

With DDPRUN_TEST_FULL=1 there are more moments. DDPRUN_TEST_SEED=N chooses them.
"""
import importlib.util
import mmap
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
MOMENTS = 10 if os.environ.get("DDPRUN_TEST_FULL") else 2
SOURCE = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("DDPRUN_TEST_SEED") or random.randrange(10000))
LIMIT_S = 120

# Each rank notes in ROUND-RANK each step that it begins (+) and that the optimizer has made (.), one byte each. The parts of a step
# take as long as the rank likes, so that ranks which are stopped anywhere have begun one.
TRAINING = '''
import os, pathlib, signal, sys, threading, time
if "waits" in sys.argv[2]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads that will be made
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder, kinds, length = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
notes = os.open(folder / f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
if "handles" in kinds:
    signal.signal(signal.SIGTERM, lambda *_: (os.write(notes, b"T"), os._exit(0)))
if "waits" in kinds:  # a thread of it, for the signal
    threading.Thread(target=lambda: (signal.sigwait({signal.SIGTERM}), os.write(notes, b"T"), os._exit(0)), daemon=True).start()
if "reports" in kinds and rank == 0:
    from ddprun import progress
    progress.report(0)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
optimizer.register_step_post_hook(lambda *_: os.write(notes, b"."))
for step in range(1_000_000):
    os.write(notes, b"+")
    loss = model(torch.randn(4, 16)).square().mean()
    time.sleep(length * (1 + rank) / (1 + dist.get_world_size()))
    loss.backward()
    if "evaluates" in kinds and step == 10:
        if rank == 0:
            time.sleep(1000)
        dist.barrier()
    optimizer.step()
    optimizer.zero_grad()
    if "reports" in kinds and rank == 0 and step % 3 == 0:
        progress.report(step)
    if "collective" in kinds:
        dist.all_reduce(torch.ones(3))
    if "ahead" in kinds and rank == 0:  # makes more steps than the others
        optimizer.step()
'''


class Job:
    def __init__(self, kinds="plain", length=0.05, nodes=1, per_node=2, options=()):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        (self.folder / "train.py").write_text(TRAINING)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        self.environment = environment | {"PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "worker_lib/python"), "OMP_NUM_THREADS": "1",
                                          "DDPRUN_CONTROL_DIR": str(self.folder)}
        with socket.create_server(("127.0.0.1", 0)) as free:
            endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        self.command = [DDPRUN, f"--nproc-per-node={per_node}", "--rdzv-id=job", *options]
        self.command += ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=last_call_timeout=60"] * (nodes > 1)
        self.program = [str(self.folder / "train.py"), str(self.folder), kinds, str(length)]
        self.agents, self.nodes, self.per_node = [], nodes, per_node
        for _ in range(nodes):
            self.add_node()

    def add_node(self):
        place = [f"--node-rank={len(self.agents)}"] if self.nodes > 1 else []
        with open(self.folder / f"told-{len(self.agents)}", "w") as told:
            self.agents.append(subprocess.Popen(self.command + place + self.program, stdin=subprocess.DEVNULL, stdout=told, stderr=told,
                                                env=self.environment))
        while self.nodes > 1 and len(self.agents) == 1 and "this node leads" not in self.told():
            time.sleep(0.01)  # or the second one may lead

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.agents:
            if each.poll() is None:
                each.kill()
                each.wait()
        self.temporary.cleanup()

    def notes(self, round=0):
        return {path.name: path.read_text() for path in self.folder.glob(f"{round}-*")}

    def await_steps(self, count, round=0, ranks=None):
        ranks = ranks or len(self.agents) * self.per_node
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and all(each.poll() is None for each in self.agents):
            notes = self.notes(round)
            if len(notes) == ranks and all(each.count("+") > count for each in notes.values()):
                return
            time.sleep(0.001)  # another process's file
        raise AssertionError(self.told())

    def stop(self, node=0, number=signal.SIGTERM):
        """The exit code, and how long it took."""
        began = time.monotonic()
        self.agents[node].send_signal(number)
        return self.agents[node].wait(LIMIT_S), time.monotonic() - began

    def told(self):
        return "\n".join(path.read_text() for path in self.folder.glob("told-*"))


class Stops(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)
        print("seed", SEED, flush=True)

    def at_one_boundary(self, job, ranks, round=0):
        """All ranks have made the same steps, and none has begun another."""
        notes = job.notes(round)
        self.assertEqual(len(notes), ranks)
        self.assertEqual(len({each.count(".") for each in notes.values()}), 1, notes)
        self.assertEqual({each[-1] for each in notes.values()}, {"."}, notes)

    def test_a_stop_signal(self):
        for kinds in ("plain", "collective", "reports"):
            for _ in range(MOMENTS):
                with self.subTest(kinds=kinds), Job(kinds) as job:
                    job.await_steps(self.random.randrange(3, 30))
                    time.sleep(self.random.uniform(0, 0.05))  # anywhere in a step
                    code, took = job.stop()
                    self.assertEqual(code, 128 + signal.SIGTERM, job.told())
                    self.assertLess(took, 3)
                    self.at_one_boundary(job, 2)

    def test_a_restart_that_is_asked_for(self):
        for _ in range(MOMENTS):
            with Job(nodes=2) as job:
                job.await_steps(self.random.randrange(3, 30))
                asked = subprocess.run([DDPCTL, "restart", "job"], env=job.environment, capture_output=True)
                self.assertEqual(asked.returncode, 0, asked.stderr)
                self.at_one_boundary(job, 4)

    def test_a_node_that_leaves_and_one_that_arrives(self):
        for _ in range(MOMENTS):
            with Job(nodes=2) as job:
                job.await_steps(self.random.randrange(3, 30))
                code, took = job.stop(node=1)
                self.assertEqual(code, 128 + signal.SIGTERM, job.told())
                job.agents.pop()
                job.await_steps(3, round=1)
                self.at_one_boundary(job, 4)
                job.add_node()
                job.await_steps(3, round=2)
                self.at_one_boundary(job, 2, round=1)
                code, _ = job.stop(node=0)  # the leader's: the job ends on both
                self.assertEqual(code, 128 + signal.SIGTERM, job.told())
                self.at_one_boundary(job, 4, round=2)

    def test_a_program_that_handles_the_signal_gets_it_at_once(self):
        for kinds in ("handles", "waits"):
            with self.subTest(kinds=kinds), Job(kinds, length=2) as job:
                job.await_steps(1)
                code, took = job.stop()
                self.assertEqual(code, 128 + signal.SIGTERM, job.told())
                self.assertLess(took, 3)
                self.assertEqual({each[-1] for each in job.notes().values()}, {"T"})

    def test_ranks_that_do_not_come_to_the_end_of_the_step_are_stopped_in_it(self):
        """A rank that evaluates while the others wait for it; ranks that make different numbers of steps."""
        for kinds in ("evaluates", "ahead"):
            with self.subTest(kinds=kinds), Job(kinds, length=0.01) as job:
                job.await_steps(10)
                time.sleep(0.3)  # now one of them is ahead, or evaluates
                code, took = job.stop()
                self.assertEqual(code, 128 + signal.SIGTERM, job.told())
                self.assertLess(took, 3)

    def test_long_steps_have_a_fifth_of_the_time_of_a_stop(self):
        with Job(length=4, options=("--shutdown-timeout=5",)) as job:
            job.await_steps(2)
            code, took = job.stop()
            self.assertEqual(code, 128 + signal.SIGTERM, job.told())
            self.assertLess(took, 3)

    def test_the_second_signal_ends_the_wait(self):
        with Job(length=4) as job:
            job.await_steps(2)
            job.agents[0].send_signal(signal.SIGTERM)
            time.sleep(1.2)  # two within a second are one
            code, took = job.stop()
            self.assertEqual(code, 128 + signal.SIGTERM, job.told())
            self.assertLess(took, 2)

    def test_a_step_is_noted_in_less_than_a_microsecond(self):
        spec = importlib.util.spec_from_file_location("progress", SOURCE / "worker_lib/python/ddprun/progress.py")
        progress = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(progress)
        link = progress._Link(mmap.mmap(-1, 4096), None, progress._PARKS_SINCE, 0, 0)
        note, best = link.counter(progress.COUNTED, 0), float("inf")
        for _ in range(3000):  # short, so that some are not interrupted
            began = time.perf_counter()
            for _ in range(200):
                note()
            best = min(best, (time.perf_counter() - began) / 200)
        print(f"a step is noted in {best * 1e9:.0f} ns", flush=True)
        self.assertLess(best, 1e-6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
