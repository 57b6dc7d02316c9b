"""Workers in Python that are replaced in place (ddprun.recoverable): one is killed, the others stay, and the training ends with the
bits of one that nobody disturbed.

  python_replace.py DDPRUN DDPCTL [TEST…]

The usual run kills 20 times. With DDPRUN_TEST_FULL=1 it is 600 times: on one node and on two, during a recovery too, with a
set-up of 10 s and a model of 200 MB among them.
"""
import collections
import contextlib
import functools
import itertools
import json
import marshal
import os
import pickle
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path

DDPRUN, DDPCTL = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
FULL = os.environ.get("DDPRUN_TEST_FULL")
DEVICE = os.environ.get("DDPRUN_TEST_DEVICE", "cpu")  # cuda:0: all ranks train on that GPU (scripts/gpu_check)
SOURCE = Path(__file__).resolve().parents[2]
LIMIT_S = 900  # then a run hangs; on two cores beside other tests a healthy one takes up to four minutes

# Until this step the training waits for the first standbys. So many more it may commit before each kill, and after it.
FIRST, AHEAD = 5, 15

PROGRAM = '''
import hashlib, json, os, pathlib, random, sys, time
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler
import ddprun

folder, what = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
device = what["device"].replace("local", os.environ["LOCAL_RANK"])
torch.set_num_threads(1)
if what.get("one_gpu"):
    os.environ["NCCL_HOSTID"] = os.environ["RANK"]  # NCCL refuses two ranks of one host on a GPU
if device != "cpu":
    torch.cuda.set_device(device)
dist.init_process_group(what.get("backend", "gloo"))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
time.sleep(what.get("setup_s", 0))


class Samples(Dataset):
    def __len__(self):
        return what.get("samples", 64) * world

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        # Some of it is drawn anew each time, from all three generators.
        noise = torch.randn(16) * 0.01 + random.random() * 0.01 + float(np.random.rand()) * 0.01
        return index, torch.randn(16, generator=generator) + noise, index % 10


class Ledger:
    """How often each sample was used on this rank: of what only this rank has."""

    def __init__(self):
        self.used = [0] * len(Samples())

    def state_dict(self):
        return {"used": list(self.used)}

    def load_state_dict(self, state):
        self.used = list(state["used"])


width = what.get("width", 64)
model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.BatchNorm1d(width),
                      nn.ReLU(), nn.Linear(width, 10)).to(device)
if what.get("sync_batch_norm"):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
ddp = DistributedDataParallel(model, bucket_cap_mb=0.01, **what.get("ddp", {}))
optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.99)
by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9999)
scaler = torch.amp.GradScaler(device.split(":")[0], init_scale=1024.0, growth_interval=5) if what.get("amp") else None
sampler = DistributedSampler(Samples())
loader = DataLoader(Samples(), batch_size=8, sampler=sampler, num_workers=what.get("workers", 0))
for seed in (torch.manual_seed, random.seed, np.random.seed):
    seed(1000 + rank)
ledger = Ledger()
per_step = what.get("per_step")
training = ddprun.recoverable(ddp, optimizer, scheduler=[scheduler, by_epoch], scaler=scaler, per_rank={"ledger": ledger})


def train_on(indices, inputs, targets, parts):
    for index in indices.tolist():
        ledger.used[index] += 1
    with torch.autocast(device.split(":")[0], enabled=scaler is not None):
        loss = nn.functional.cross_entropy(ddp(inputs.to(device)), targets.to(device)) / parts
    (scaler.scale(loss) if scaler else loss).backward()


for epoch in training.epochs(what["epochs"]):
    sampler.set_epoch(epoch)
    for step in training.steps(loader, per_step):
        with step as batches:
            optimizer.zero_grad(set_to_none=what.get("set_to_none", True))
            batches = batches if per_step else [batches]
            for i, batch in enumerate(batches):
                if i + 1 < len(batches):
                    with ddp.no_sync():
                        train_on(*batch, len(batches))
                else:
                    train_on(*batch, len(batches))
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            scheduler.step()
        was_replaceable = training.is_replaceable
        if (folder / "paced").exists():  # a step takes longer, and the next one begins when it may, until all are killed
            time.sleep(0.005)
            while training.committed >= int((folder / "may-commit").read_text()):
                time.sleep(0.01)
    by_epoch.step()

total = hashlib.sha256()
for tensor in [*model.parameters(), *model.buffers()]:
    total.update(tensor.detach().cpu().numpy().tobytes())
for _, state in sorted(optimizer.state_dict()["state"].items()):
    for name in sorted(state):
        total.update(state[name].cpu().numpy().tobytes())
total.update(repr((scheduler.state_dict(), by_epoch.state_dict(), scaler and scaler.state_dict())).encode())
if device != "cpu":
    total.update(torch.cuda.get_rng_state(device).numpy().tobytes())
total.update(repr((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())).encode())
(folder / f"end-{rank}").write_text(json.dumps({"hash": total.hexdigest(), "used": ledger.used,
    "is_replaceable": was_replaceable, "committed": training.committed, "files": [os.readlink(f"/proc/self/fd/{each}")
    for each in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{each}")]}))
'''


class Training:
    """A job of PROGRAM on one node, or on several of this machine."""

    def __init__(self, folder, ranks, what, *options, nodes=1):
        self.folder, self.ranks, self.nodes = Path(folder), ranks, nodes
        self.folder.mkdir(parents=True, exist_ok=True)
        self.program = self.folder / "program.py"
        self.program.write_text(PROGRAM)
        self.what, self.options = {"device": DEVICE, **what}, options
        self.errors = open(self.folder / "errors", "w+b")
        self.agents = []

    def environment(self, node):
        control = self.folder / f"control-{node}"
        control.mkdir(mode=0o700, exist_ok=True)
        return {**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "worker_lib/python"),
                "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "DDPRUN_CONTROL_DIR": str(control),
                "GLOO_SOCKET_IFNAME": "lo"}

    def __enter__(self):
        of_nodes = []
        if self.nodes > 1:
            import socket
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            of_nodes = [f"--nnodes={self.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        for node in range(self.nodes):
            self.agents.append(subprocess.Popen(
                [DDPRUN, f"--nproc-per-node={self.ranks // self.nodes}", "--max-restarts=100000", "--rdzv-id=job",
                 f"--events={self.folder}/events-{node}", *of_nodes, *self.options, self.program, self.folder,
                 json.dumps(self.what)],
                stdout=self.errors, stderr=self.errors, env=self.environment(node), cwd=self.folder))
        return self

    def __exit__(self, *_):
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
            agent.wait()
        self.errors.close()

    def said(self):
        return (self.folder / "errors").read_text(errors="replace")

    def paced(self):
        self.steps = 0
        self.allow(FIRST)
        (self.folder / "paced").touch()
        return self

    def allow(self, steps):
        self.steps += steps
        (self.folder / "may-commit.new").write_text(str(self.steps))
        (self.folder / "may-commit.new").rename(self.folder / "may-commit")

    def until(self, holds, every_s=0.01):
        deadline = time.monotonic() + LIMIT_S
        while not (found := holds()):
            if time.monotonic() > deadline or any(agent.poll() is not None for agent in self.agents):
                raise AssertionError(f"it has not got on:\n{self.said()}")
            time.sleep(every_s)
        return found

    def status(self, node):
        asked = subprocess.run([DDPCTL, "status", "--json", "job"], capture_output=True, env=self.environment(node))
        return json.loads(asked.stdout)["nodes"][0] if asked.returncode == 0 else {}

    def workers(self):
        found = {}
        for node in range(self.nodes):
            status = self.status(node)
            if (status.get("replacement") or {}).get("waiting") != self.ranks // self.nodes:
                return None
            found.update({worker["rank"]: worker["pid"] for worker in status["workers"]})
        return found

    def events(self, kind):
        lines = (self.folder / "events-0").read_text().splitlines() if (self.folder / "events-0").exists() else []
        return [event for event in (json.loads(line) for line in lines if line.endswith("}")) if event["event"] == kind]

    def wait(self):
        """What each rank says at the end."""
        for agent in self.agents:
            if agent.wait(LIMIT_S) != 0:
                raise AssertionError(self.said())
        return [json.loads((self.folder / f"end-{rank}").read_text()) for rank in range(self.ranks)]


class Replaced(unittest.TestCase):
    training = Training

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def undisturbed(self, ranks, what):
        # From standbys, which import PyTorch once. Without restarts nobody is replaced.
        return self.training(self.folder / f"plain-{ranks}", ranks, what, f"--standby={ranks}", "--max-restarts=0")

    def kill(self, training, chance, kills, during_recovery=0.0):
        """So many times; how long each took, in ms."""
        took = []
        for _ in range(kills):
            workers = training.until(training.workers, 0.05)
            known = len(training.events("recovered"))
            training.allow(AHEAD)
            time.sleep(chance.uniform(0, 0.1))
            first, second = chance.sample(sorted(workers), 2)
            killed = time.monotonic()
            os.kill(workers[first], signal.SIGKILL)
            if chance.random() < during_recovery:
                time.sleep(chance.uniform(0, 0.04))
                os.kill(workers[second], signal.SIGKILL)
            training.allow(AHEAD)
            training.until(lambda: len(training.events("recovered")) > known, 0.002)
            event = training.events("recovered")[-1]
            took.append(event["monotonic_us"] / 1e3 - killed * 1e3)
            self.assertEqual(event["how"], "replaced", training.said())
        return took

    def check(self, expected, ends, ranks, what):
        self.assertEqual([end["hash"] for end in ends], [end["hash"] for end in expected])
        self.assertEqual({end["is_replaceable"] for end in ends}, {True})
        used = [sum(counts) for counts in zip(*(end["used"] for end in ends))]
        self.assertEqual(set(used), {what["epochs"]}, "a sample was used more or less often")
        self.assertEqual({end["is_replaceable"] for end in expected}, {False})

    def disturb(self, ranks, what, kills, seed, during_recovery=0.0, nodes=1):
        steps_per_epoch = -(-what.get("samples", 64) // (8 * what.get("per_step", 1)))
        what = {**what, "epochs": (FIRST + 2 * AHEAD * kills) // steps_per_epoch + 2}
        with self.undisturbed(ranks, what) as plain, \
                self.training(self.folder / f"killed-{ranks}-{nodes}-{seed}", ranks, what, f"--standby={ranks // nodes}",
                         nodes=nodes).paced() as training:
            expected = plain.wait()
            took = self.kill(training, random.Random(seed), kills, during_recovery)
            (training.folder / "paced").unlink()
            training.allow(sys.maxsize)
            ends = training.wait()
            rounds, said = training.events("round_started"), training.said()
        self.check(expected, ends, ranks, what)
        self.assertEqual(len(rounds), 1, f"the round was restarted:\n{said}")
        if during_recovery == 0 and nodes == 1:  # who takes a place goes on with the number of the step
            steps = [worker["progress"]["step"] for worker in training.events("worker_exited") if worker["signal"]]
            self.assertEqual((len(steps), steps), (kills, sorted(step for step in steps if step)))
        # Of groups that were made again, only the last ones' listeners may be open still.
        for end in ends:
            self.assertLess(sum(file.startswith("socket:") for file in end["files"]), 40)
            self.assertLess(len(end["files"]), 100)
        print(f"{ranks} ranks on {nodes}, {what}: {len(took)} kills, median {sorted(took)[len(took) // 2]:.0f} ms, "
              f"slowest {max(took):.0f} ms", flush=True)
        return ends

    def test_three_ranks_end_with_the_bits_of_an_undisturbed_run(self):
        self.disturb(3, {}, 8, seed=1)

    def test_accumulation_amp_and_processes_that_load(self):
        # Each epoch starts processes anew, so it is a long one.
        self.disturb(2, {"samples": 480, "workers": 2, "per_step": 3, "amp": True, "set_to_none": False}, 4, seed=2)

    @unittest.skipUnless(FULL, "only with DDPRUN_TEST_FULL")
    def test_a_second_death_during_recovery(self):
        self.disturb(3, {}, 10, seed=3, during_recovery=1.0)

    @unittest.skipUnless(FULL, "only with DDPRUN_TEST_FULL")
    def test_600_kills(self):
        cases = [(2, 1, {}), (3, 1, {}), (4, 2, {}), (2, 1, {"workers": 2, "per_step": 3}),
                 (3, 1, {"ddp": {"find_unused_parameters": True}})]
        for number, (ranks, nodes, what) in enumerate(cases):
            with self.subTest(ranks=ranks, nodes=nodes, what=what):
                self.disturb(ranks, what, 120 if number < 4 else 100, seed=10 + number, nodes=nodes)
        with self.subTest("large"):
            self.disturb(2, {"width": 7000, "setup_s": 10}, 5, seed=20)


def without_agent(backend="gloo"):
    """What an agent's hooks would bring, and the agent's end of a link, in this process; it is all ranks."""
    import ctypes
    import importlib.util
    import socket
    sys.path.insert(0, str(SOURCE / "worker_lib/python"))
    ctypes.CDLL(str(DDPRUN.parents[1] / "lib/libddprun_in_place.so"), ctypes.RTLD_GLOBAL)
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.setblocking(False)
    page = os.memfd_create("page")
    os.ftruncate(page, 4096)
    os.pwrite(page, struct.pack("=QIIii", 0x4B4E494C50444400, 5, 4096, os.getpid(), os.getpid()), 0)
    os.set_inheritable(worker.fileno(), True)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
                      TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0", DDPRUN_REPLACES="1",
                      DDPRUN_LINK_FD=str(worker.detach()), DDPRUN_LINK_PAGE_FD=str(page), GLOO_SOCKET_IFNAME="lo")
    about = importlib.util.spec_from_file_location("_ddprun_groups", SOURCE / "worker_lib/python/ddprun/groups.py")
    groups = sys.modules["_ddprun_groups"] = importlib.util.module_from_spec(about)
    about.loader.exec_module(groups)
    groups.install(dist.distributed_c10d)
    dist.init_process_group(backend)
    return store, agent, groups.current


class Refused(unittest.TestCase):
    """What cannot be replaced in place is said in one sentence, and the training goes on as without ddprun."""

    @classmethod
    def setUpClass(cls):
        cls.store, cls.agent, cls.groups = without_agent()
        global ddprun, torch, DistributedDataParallel, DataLoader, IterableDataset
        import ddprun
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, IterableDataset

    def setUp(self):
        self.groups.refused = None
        self.groups.show()  # what a test that ends in the middle has hidden
        self.groups.old.clear()  # of other tests
        self.heard()

    def heard(self):
        """The sentences that the agent was told since it was asked."""
        found = []
        while True:
            try:
                packet = self.agent.recv(512)
            except BlockingIOError:
                return found
            if int.from_bytes(packet[:4], sys.byteorder) == 8:
                found.append(packet[16:].rstrip(b"\0").decode())

    def model(self, **options):
        return DistributedDataParallel(torch.nn.Linear(2, 1), **options)

    def join(self, model=None, optimizer=None, **more):
        model = model or self.model()
        self.optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
        self.ddp = model
        return ddprun.recoverable(model, self.optimizer, **more)

    def make_step(self, batch):
        self.optimizer.zero_grad()
        self.ddp(batch).sum().backward()
        self.optimizer.step()

    def train(self, job, batches, steps=None):
        done = 0
        for step in job.steps(batches):
            with step as batch:
                self.make_step(torch.ones(1, 2))
            done += 1
            if done == steps:
                break
        return done

    def assert_said(self, *words):
        said = self.heard()
        self.assertEqual(len(said), 1, said)
        for word in words:
            self.assertIn(word, said[0])

    def test_at_join(self):
        class NoState:
            pass

        def hooked():
            model = self.model()
            model.register_comm_hook(None, lambda state, bucket: None)
            return model

        def scheduled(model):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
            return optimizer

        def ignoring():
            module = torch.nn.Linear(2, 1)
            module._ddp_params_and_buffers_to_ignore = ["bias"]
            module.bias.requires_grad = False
            return DistributedDataParallel(module)

        class Unpicklable:
            def state_dict(self):
                return {"f": lambda: None}

            load_state_dict = None

        plain = torch.nn.Linear(2, 1)
        cases = [("no DistributedDataParallel but a Linear", lambda: self.join(plain)),
                 ("communication hook", lambda: self.join(hooked())),
                 ("static_graph", lambda: self.join(self.model(static_graph=True))),
                 ("no torch.optim.Optimizer but a NoState", lambda: self.join(optimizer=NoState())),
                 ("not all parameters that are trained", lambda: self.join(model := self.model(), torch.optim.SGD(
                     [model.module.weight]))),
                 ("recoverable() was given none", lambda: self.join(model := self.model(), scheduled(model))),
                 ("ignores parameters", lambda: self.join(ignoring())),
                 ("cannot be pickled (AttributeError", lambda: self.join(part=Unpicklable()))]
        for words, make in cases:
            with self.subTest(words):
                self.assertIsNone(make()._recovery)
                self.assert_said(words)

    def test_a_package_of_another_version(self):
        import io
        from unittest import mock
        from ddprun import in_place
        said = io.StringIO()
        with mock.patch.object(in_place, "is_there", False), contextlib.redirect_stderr(said):
            self.assertFalse(self.join().is_replaceable)
        self.assertIn("not replaced in place: its package ddprun is of another version", said.getvalue())

    def test_a_sharded_model(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(torch.nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1,)))
        self.heard()
        self.assertFalse(self.join(model).is_replaceable)
        self.assert_said("its model is sharded (FSDP2)", "All ranks are restarted")

    def test_other_groups_and_stores(self):
        from unittest import mock
        with mock.patch.object(self.groups, "_url", "tcp://127.0.0.1:1"):
            self.join()
            self.assert_said("do not meet at the store of ddprun")
        with mock.patch.object(self.groups, "ask_all", return_value=["2.11.0", "2.15.0"]):
            self.join()
            self.assert_said("different versions of torch (2.11.0, 2.15.0)")
        with mock.patch.object(self.groups, "_interrupt", None):
            self.join()
            self.assert_said("calls over the Gloo of this PyTorch cannot be ended")
        torch.distributed.new_group([0])
        self.join()
        self.assert_said("a group of its own (new_group, DeviceMesh)")

    def test_what_one_rank_alone_refuses(self):
        """The others compare values at the fourth step, the eighth …: it answers once, and they refuse as well."""
        from unittest import mock
        job, given = self.join(), []
        gather = job._recovery._all_gather
        with mock.patch.object(job._recovery, "_all_gather", lambda value: given.append(value is None) or gather(value)):
            for step in job.steps([1] * 20):
                if step.number == 5:
                    job._recovery.refuse("of this rank's own")
                with step:
                    self.make_step(torch.ones(1, 2))
        self.assertEqual(given, [False, True])
        self.assert_said("of this rank's own")

        job, given = self.join(), []
        with mock.patch.object(job._recovery, "_all_gather", lambda value: given.append(value) or [value, None]):
            self.train(job, [1] * 20)
        self.assertEqual((len(given), job.committed), (1, 20))
        self.assert_said("another rank cannot be replaced in place")

        for asked in ("recoverable", "second step"):
            words = []
            with mock.patch.object(self.groups, "ask_all", lambda about, word: [word, "null" if about == asked else word]), \
                    mock.patch.object(self.groups, "say", lambda about, word: words.append((about, word))):
                self.assertEqual(self.train(self.join(), [1] * 6), 6)
                self.assert_said("another rank cannot be replaced in place")
                self.assertEqual(words, [("second step", "null")] if asked == "recoverable" else [])
        with mock.patch.object(self.groups, "say", lambda about, word: words.append((about, word))):
            its = torch.nn.Linear(2, 1)
            self.train_beside(self.join(), its)
            self.assertEqual(words, [("second step", "null")])
            self.join(torch.nn.Linear(2, 1))
            self.assertEqual(words, [("second step", "null"), ("recoverable", "null")])
        self.heard()

    def test_a_group_that_is_made_later(self):
        job = self.join()
        torch.distributed.new_group([0])
        self.assert_said("a group of its own (new_group, DeviceMesh)")
        self.assertEqual(self.train(job, [1] * 4), 4)

    def test_batches_that_cannot_be_given_again(self):
        class Endless(IterableDataset):
            def __iter__(self):
                return iter(torch.ones(4, 2))

        class Ahead(DataLoader):
            def __iter__(self):
                yield from list(super().__iter__())

        class Posing:  # as Accelerate's loaders do
            __class__ = DataLoader

            def __iter__(self):
                return iter(Ahead(numbers))

        numbers = torch.utils.data.TensorDataset(torch.ones(4, 2))
        cases = [("Endless is an IterableDataset", DataLoader(Endless())),
                 ("its Ahead is no plain DataLoader", Ahead(numbers)), ("its Posing is no plain DataLoader", Posing()),
                 ("an iterator is at an end once", iter([1, 2, 3, 4])),
                 ("persistent_workers", DataLoader(numbers, num_workers=1, persistent_workers=True))]
        for words, loader in cases:
            with self.subTest(words):
                job = self.join()
                self.assertEqual(self.train(job, loader), 4)
                self.assert_said(words)

    def test_a_second_loop_without_epochs(self):
        job = self.join()
        for _ in range(2):
            self.assertEqual(self.train(job, [1] * 3), 3)
        self.assertEqual(job.committed, 6)

        job = self.join()
        self.heard()
        job._place.loop = 1  # as if the first one were over, and recovery not withdrawn with it
        self.assertEqual(self.train(job, [1] * 3), 3)
        self.assert_said("must be over training.epochs")

    def test_steps_that_are_left(self):
        job = self.join()
        with self.assertRaises(ZeroDivisionError):
            for step in job.steps([1] * 6):
                with step:
                    self.make_step(torch.ones(1, 2))
                    if job.committed == 3:
                        1 / 0
        self.assertEqual((step.committed, job.committed), (False, 3))
        self.assert_said("an exception of the program (ZeroDivisionError)")

        job = self.join()
        for step in job.steps([1] * 6):  # an error that the program catches commits nothing
            try:
                with step:
                    self.make_step(torch.ones(1, 2))
                    if step.number == 3:
                        1 / 0
            except ZeroDivisionError:
                break
        self.assertEqual((step.committed, job.committed), (False, 3))
        self.heard()

    def test_steps_that_are_left_before_the_optimizers(self):
        """They count. What they leave in the gradients must not be kept for the next one, since a recovery drops it."""
        from ddprun import recovery
        for cleans, left in ((True, 1), (True, 5), (False, 5)):
            with self.subTest(cleans=cleans, left=left):
                job = self.join()
                for step in job.steps([1] * 8):
                    with step:
                        self.leave_before_the_optimizers(job, step.number == left, cleans)
                    self.assertTrue(step.committed)
                self.assertEqual(job.committed, 8)
                self.assert_said("keeps gradients from one step to the next") if not cleans else self.assertEqual(self.heard(), [])
        for cleans in (True, False):
            with self.subTest(cleans=cleans, loses=True):
                job = self.join()
                with contextlib.nullcontext() if cleans else self.assertRaises(recovery.CannotRecover):
                    for step in job.steps([1] * 4):
                        with step:
                            self.leave_before_the_optimizers(job, step.number == 1, cleans, loses=True)
                self.assertEqual((job.committed, job._recovery._generation), (4, 1) if cleans else (2, 0))
                self.assert_said("whose gradients may be kept") if not cleans else self.assertEqual(self.heard(), [])

    def leave_before_the_optimizers(self, job, leaves, cleans, loses=False):
        if cleans:
            self.optimizer.zero_grad()
        if loses:
            self.lose(job)
        self.ddp(torch.ones(1, 2)).sum().backward()
        if not leaves:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def test_loops_that_are_left(self):
        job = self.join()
        for epoch in job.epochs(3):
            self.assertEqual(self.train(job, [1] * 8, steps=3), 3)
        self.assertEqual((job.committed, self.heard()), (9, []))

    def test_steps_that_are_not_taken(self):
        for make in (self.join, self.alone):
            each = make()
            with self.assertRaisesRegex(RuntimeError, "step 0 was neither entered nor skipped"):
                for step in each.steps([1] * 2):
                    pass
            with self.assertRaisesRegex(RuntimeError, "step 0 is left already: each step .* is entered once"):
                for step in each.steps([1] * 2):
                    for _ in range(2):
                        with step:
                            self.make_step(torch.ones(1, 2))
        for make in (self.join, self.alone):
            each = make()
            with self.assertRaisesRegex(RuntimeError, "inside of step 1"):
                steps = iter(each.steps([1] * 4))
                with next(steps):
                    self.make_step(torch.ones(1, 2))
                with next(steps):
                    next(steps)
            steps.close()
            with self.assertRaisesRegex(RuntimeError, "step 1 is over"):
                steps = iter(each.steps([1] * 4))
                step = next(steps)
                steps.close()
                with step:
                    pass
        self.heard()

    def test_steps_that_are_skipped(self):
        for make in (self.join, self.alone):
            each = make()
            given = []
            for step in each.steps(range(6)):
                if step.number == 2 and len(given) < 3:
                    given.append((step.number, "skipped"))
                    step.skip()
                    with self.assertRaisesRegex(RuntimeError, "skipped already"):
                        step.skip()
                    continue
                with step as number:
                    given.append((step.number, number))
                    self.make_step(torch.ones(1, 2))
            self.assertEqual(given, [(0, 0), (1, 1), (2, "skipped"), (2, 3), (3, 4), (4, 5)])
            self.assertEqual(each.committed, 5)
        self.assertEqual(self.heard(), [])

    def test_a_loop_that_is_left_before_a_step_is_made_again(self):
        from unittest import mock
        job, said = self.join(), []
        with mock.patch("ddprun.training.end_process", said.append):
            for step in job.steps([1] * 4):
                with step:
                    self.lose(job)
                    self.make_step(torch.ones(1, 2))
                if step.number == 2:
                    break
        self.assertFalse(step.committed)
        self.assertEqual(len(said), 1)
        self.assert_said("write `if step.committed:`")

    def test_inputs_that_differ_when_a_step_is_made_again(self):
        from ddprun import recovery
        for in_place in (False, True):
            job, calls = self.join(), []
            with self.assertRaises(recovery.CannotRecover):
                for step in job.steps([1] * 4):
                    with step:
                        calls.append(1)
                        self.lose(job)
                        self.make_step(torch.full((1, 2), float(len(calls))))
            self.assertEqual(len(calls), 4)
            self.assert_said("the inputs of forward 0 differ when step 2 is made again")

    def test_what_is_no_part(self):
        class NoState:
            pass

        for words, make in (("'meter' is a NoState, which has no state_dict", lambda: self.join(meter=NoState())),
                            ("no option 'sampler': the loader's sampler is carried", lambda: self.join(sampler=1)),
                            ("no option 'epochs'", lambda: self.join(epochs=3)),
                            ("'a' is given twice", lambda: self.join(a=self.model(), parts={"a": self.model()})),
                            ("model is a NoState", lambda: ddprun.recoverable(NoState(), None))):
            with self.subTest(words), self.assertRaisesRegex(TypeError, words):
                make()
        self.assertRaisesRegex(ValueError, "per_step is 0", self.join().steps, [1], 0)
        self.heard()

    def test_where_a_training_goes_on(self):
        def make(after=None, position=None):
            torch.manual_seed(3)
            given = []
            loader = DataLoader(range(8), batch_size=2, shuffle=True)
            job = self.alone()
            if position is not None:
                job.start_at(position)
            for epoch in job.epochs(3):
                for step in job.steps(loader):
                    with step as batch:
                        given.append((step.number, epoch, batch.tolist(), torch.rand(1).item()))
                    if after == job.committed:
                        return job.position, given
            return None, given
        _, expected = make()
        self.assertEqual(len(expected), 12)
        for after in range(1, 12):
            position, _ = make(after)
            self.assertEqual(make(position=pickle.loads(pickle.dumps(position)))[1], expected[after:], after)

    def test_calls_between_join_and_the_first_step(self):
        job = self.join()
        torch.distributed.barrier()
        self.assertEqual(self.train(job, [1] * 3), 3)
        self.assert_said("between recoverable() and the first step")

    def lose(self, job):
        """Before a backward of the third step: as if the agent had said that a rank was lost."""
        if job.committed == 2 and job._recovery._generation == 0:
            job._recovery._link.wanted = 1

    def test_a_lost_step_ends_before_its_gradients(self):
        job = self.join()
        begun, computed = [], []
        self.ddp.module.weight.register_hook(lambda _: computed.append(job.committed))
        for step in job.steps([1] * 4):
            with step:
                self.optimizer.zero_grad()
                begun.append(job.committed)
                loss = self.ddp(torch.ones(1, 2)).sum()
                self.lose(job)
                loss.backward()
                self.optimizer.step()
        self.assertEqual((begun, computed, job._recovery._generation), ([0, 1, 2, 2, 3], [0, 1, 2, 3], 1))
        self.assertEqual(self.heard(), [])

    def test_what_an_optimizer_counts_in_a_step_that_is_made_again(self):
        class Counting(torch.optim.SGD):
            def step(self, *_):
                for each in self.param_groups[0]["params"]:
                    self.state[each]["count"] = self.state[each].get("count", 0) + 1
                    self.state[each].setdefault("before", []).append(each.detach().clone())
                super().step()

        model = self.model()
        optimizer = Counting(model.parameters(), 0.1)
        job = self.join(model, optimizer)
        for step in job.steps([1] * 4):
            with step:
                with torch.no_grad():
                    model.module.weight.mul_(1)
                self.make_step(torch.ones(1, 2))
                self.lose(job)
                self.make_step(torch.ones(1, 2))
        self.assertEqual((job.committed, job._recovery._generation, self.heard()), (4, 1, []))
        self.assertEqual([(its["count"], len(its["before"])) for its in optimizer.state.values()], [(8, 8)] * 2)

    def test_a_step_that_changes_weights_before_it_is_lost(self):
        def train(first, loses):
            torch.manual_seed(5)
            job = self.join()
            for step in job.steps([1] * 4):
                with step:
                    if step.number >= first:
                        with torch.no_grad():
                            self.ddp.module.weight.mul_(0.5)
                    if loses:
                        self.lose(job)
                    self.make_step(torch.ones(1, 2))
            return job, self.ddp.module.weight.detach().clone()
        _, expected = train(0, False)
        job, weight = train(0, True)
        self.assertEqual(job._recovery._generation, 1)
        self.assertTrue(torch.equal(weight, expected))
        self.assertEqual(self.heard(), [])
        with self.assertRaises(ConnectionError):  # it has begun with that in the step that is lost
            train(2, True)
        self.assert_said("had changed the weights")

    def test_what_follows_the_batch_is_made_again(self):
        """Up to the entry of the step, too."""
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.step()  # or a scheduler warns
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        noise = torch.Generator()
        job = self.join(model, optimizer, scheduler=scheduler, per_rank={"noise": noise})
        seen = []
        for step in job.steps([1] * 4):
            scheduler.step()
            drawn = torch.rand(1, generator=noise).item(), torch.rand(1).item(), random.random()
            with step:
                seen.append((optimizer.param_groups[0]["lr"], *drawn))
                self.lose(job)
                self.make_step(torch.ones(1, 2))
        self.assertEqual([lr for lr, *_ in seen], [0.05, 0.025, 0.0125, 0.0125, 0.00625])
        self.assertEqual(seen[2], seen[3])
        self.assertEqual((len(set(seen)), self.heard()), (4, []))

    def test_a_large_part_that_a_lost_step_has_changed(self):
        class Average:
            """Has another tensor after each change, or tells a copy: no version of a tensor shows it."""

            def __init__(self, copies):
                self.value, self.copies = torch.zeros(100_000), copies

            def state_dict(self):
                return {"value": self.value.clone() if self.copies else self.value}

            def load_state_dict(self, state):
                self.value = state["value"]

        average = Average(copies=True)
        job = self.join(average=average)
        self.train_with(job, average)
        self.assert_said("between a batch and its step")
        average = Average(copies=False)
        job = self.join(average=average)
        self.train_with(job, average)
        self.assertEqual((average.value.unique().tolist(), job.committed, job._recovery._generation), ([4], 4, 1))
        self.assertEqual(self.heard(), [])

    def train_with(self, job, average):
        for step in job.steps([1] * 4):
            with step:
                average.value = average.value + 1
                self.lose(job)
                self.make_step(torch.ones(1, 2))

    def test_a_part_that_is_not_put_back_as_it_was(self):
        from ddprun import recovery

        class Counts:
            seen = made = 0

            def state_dict(self):
                return {"seen": self.seen, "made": self.made}

            def load_state_dict(self, state):
                self.seen = state["seen"]

        counts = Counts()
        job = self.join(per_rank={"counts": counts})
        with self.assertRaises(recovery.CannotRecover):
            for step in job.steps([1] * 4):
                with step:
                    counts.made += 1
                    self.lose(job)
                    self.make_step(torch.ones(1, 2))
        self.assert_said("the part counts of rank 0 is not what it was, after it was put back")

    def test_a_buffer_that_is_not_put_back_as_it_was(self):
        from unittest import mock
        from ddprun import recovery, worker_state
        job = self.joined_with_buffers()
        with mock.patch.object(worker_state.Buffers, "restore"), self.assertRaises(recovery.CannotRecover):
            for step in job.steps([1] * 4):
                with step:
                    loss = self.ddp(torch.rand(4, 2)).sum()
                    self.lose(job)
                    loss.backward()
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        self.assert_said("the buffer running_mean of rank 0 is not what it was, after it was put back")

    def test_a_call_behind_a_step_that_is_made_again(self):
        """The other ranks are at the entry of the step, and would take it for another call."""
        job, said = self.join(), []
        for step in job.steps([1] * 4):
            with step:
                self.lose(job)
                self.make_step(torch.ones(1, 2))
            if step.committed:
                torch.distributed.all_reduce(torch.ones(1))
            else:
                self.assertEqual(torch.distributed.get_rank(), 0)
                with self.assertRaisesRegex(RuntimeError, "is not committed, .* must not call the other ranks"):
                    torch.distributed.all_reduce(torch.ones(1))
                said.append(step.number)
        self.assertEqual((said, job.committed, self.heard()), ([2], 4, []))

    def test_no_snapshot_before_the_replicas_are_compared(self):
        from unittest import mock
        job = self.join()
        job._memory = mock.Mock()
        for step in job.steps([1] * 4):
            job._recovery._replicas_agreed = step.number != 2
            with step:
                job._recovery._replicas_agreed = True
                self.make_step_with_a_call(job)
        self.assertEqual([each.args[0] for each in job._memory.keep.call_args_list], [0, 1, 3])

    def test_numbers_that_are_drawn_between_two_steps(self):
        def has_noted(number):
            (*_, is_settled, may_lack_draws, _), _, restore = job._recovery._own.read(job._recovery._record(number, True))
            return is_settled, may_lack_draws, restore

        for in_block in (False, True):
            job = self.join()
            for step in job.steps([1] * 8):
                if step.number > 0:
                    is_settled, may_lack_draws, restore = has_noted(step.number - 1)
                    self.assertEqual((is_settled, may_lack_draws), (step.number == 4, step.number > 4))
                if step.number == 4:
                    random.random()
                    restore()
                    self.assertEqual(job._recovery.generators.now(), now)
                with step:
                    self.make_step_with_a_call(job)
                    if in_block and step.number == 3:
                        random.random()
                self.assertEqual(has_noted(step.number)[:2], (False, step.number > 3))
                if step.number == 3:
                    random.random()
                    now = job._recovery.generators.now()
            self.assertEqual(self.heard(), [])

    def test_numbers_that_a_process_before_this_one_may_have_drawn(self):
        from ddprun import recovery
        job = self.join()
        with self.assertRaises(recovery.CannotRecover):
            for step in job.steps([1] * 8):
                with step:
                    self.make_step_with_a_call(job)
                if step.number == 3:
                    job._recovery._left_behind = 2
                    before = job._recovery._own.read(job._recovery._record(3, True))[0][-1]
                if step.number == 5:
                    random.random()
                    self.assertEqual((before, job._recovery._own.read(job._recovery._record(5, True))[0][-1]), (None, 2))
        self.assertEqual(job.committed, 6)
        self.assert_said("random numbers are drawn behind the block of a step", "rank 0 was lost there in step 2")

    def test_state_of_an_optimizer_that_is_not_as_usual(self):
        class WithTotal(torch.optim.SGD):
            def step(self, *_):
                self.state["total"] = 3

        class InDouble(torch.optim.SGD):
            def step(self, *_):
                for each in self.param_groups[0]["params"]:
                    self.state[each]["sum"] = torch.zeros_like(each, dtype=torch.float64)

        for words, kind in (("belongs to no parameter ('total')", WithTotal), ("of another type than its parameter", InDouble)):
            with self.subTest(words):
                model = self.model()
                self.assertEqual(self.train(self.join(model, kind(model.parameters(), 0.1)), [1] * 4), 4)
                self.assert_said(words)
        model = self.model()
        self.join(model, torch.optim.SGD([{"params": model.parameters(), "scale": lambda: 1}], 0.1))
        self.assert_said("an option of a parameter group cannot be pickled")

    def test_loops_that_cannot_be_told_apart(self):
        for make in (self.join, self.alone):
            job = make()
            with self.assertRaisesRegex(RuntimeError, "begins while one is not over"):
                list(zip(job.steps([1, 2]), job.steps([3, 4])))
        job = self.alone()
        self.assertRaisesRegex(RuntimeError, "read in a loop", lambda: job.position)
        self.train(job, [1])
        self.assertRaisesRegex(RuntimeError, "read in a loop", lambda: job.position)
        phases = [epoch for _ in range(2) for epoch in self.alone().epochs(2)]
        self.assertEqual(phases, [0, 1, 0, 1])
        self.heard()

    def test_phases_go_on_in_their_own(self):
        def train(position=None, after=None):
            job, given = self.alone(), []
            if position is not None:
                job.start_at(position)
            for phase in range(2):
                for epoch in job.epochs(2):
                    for step in job.steps([1, 2]):
                        with step:
                            self.make_step(torch.ones(1, 2))
                        given.append((phase, epoch, step.number))
                        if job.committed == after:
                            return job.position
            return given
        whole = train()
        for after in range(1, 8):
            self.assertEqual(train(train(after=after)), whole[after:])

    def test_weights_that_change_between_a_batch_and_its_step(self):
        job = self.join()
        for step in job.steps([1] * 4):
            with torch.no_grad():
                self.ddp.module.weight.mul_(0.5)
            with step:
                self.make_step(torch.ones(1, 2))
        self.assert_said("between a batch and its step")

    def test_settings_are_put_back_for_a_step_that_is_made_again(self):
        for kind in (lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
                     lambda optimizer: torch.optim.lr_scheduler.ChainedScheduler(
                         [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)])):
            model = self.model()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            optimizer.step()  # or a scheduler warns
            scheduler = kind(optimizer)
            job = self.join(model, optimizer, scheduler=scheduler)
            rates = []
            for step in job.steps([1] * 4):
                with step:
                    scheduler.step()
                    rates.append(optimizer.param_groups[0]["lr"])
                    self.lose(job)
                    self.make_step(torch.ones(1, 2))
            self.assertEqual((rates, job._recovery._generation), ([0.05, 0.025, 0.0125, 0.0125, 0.00625], 1))
            self.assertEqual(self.heard(), [])

    def test_a_batch_is_given_again_as_it_was(self):
        job = self.join()
        seen = []
        for step in job.steps([{"x": [torch.ones(1, 2)]} for _ in range(4)]):
            with step as batch:
                seen.append(float(batch["x"][0].sum()))
                batch["x"][0] = batch["x"][0] / 2
                self.lose(job)
                self.make_step(batch.pop("x")[0])
        self.assertEqual((seen, job._recovery._generation), ([2.0] * 5, 1))
        self.assertEqual(self.heard(), [])

    def test_gradients_that_are_kept(self):
        scaler = torch.amp.GradScaler("cpu")
        job = self.join(scaler=scaler)
        for number, step in enumerate(job.steps([1] * 4)):
            with step:
                scaler.scale(self.ddp(torch.ones(1, 2)).sum()).backward()
                if number % 2:
                    scaler.step(self.optimizer)
                    scaler.update()
                    self.optimizer.zero_grad()
        self.assert_said("keeps gradients from one step to the next")
        self.assertEqual(job.committed, 4)

    def test_buffers_that_change_after_the_record(self):
        job = self.joined_with_buffers()
        for step in job.steps([1] * 4):
            with step:
                self.make_step_with_a_call(job)
                self.ddp.module[1].running_mean.zero_()
        self.assert_said("buffers or parts are changed after its backward() has begun")

    def test_an_error_that_is_caught_in_the_step(self):
        from ddprun import recovery
        job = self.join()
        with self.assertRaises(recovery.CannotRecover):
            for step in job.steps([1] * 4):
                with step:
                    self.lose(job)
                    try:
                        self.make_step(torch.ones(1, 2))
                    except ConnectionError:
                        self.optimizer.step()
        self.assert_said("was caught in the step")

    def test_an_error_of_backward_that_is_caught_before_the_agents_word_comes(self):
        from unittest import mock
        from ddprun import recovery
        for is_of_loss, number in ((False, 3), (True, 2)):
            with self.subTest(is_of_loss=is_of_loss):
                job, steps = self.join(), []
                failures = mock.patch.object(job._recovery, "_failures", types.SimpleNamespace(value=job._recovery._failures_before))
                with failures as its, self.assertRaises(recovery.CannotRecover) if is_of_loss else contextlib.nullcontext():
                    for step in job.steps([1] * 4):
                        with step:
                            self.optimizer.zero_grad()
                            loss = self.ddp(torch.ones(1, 2)).sum()
                            if step.number == 2:
                                self.ddp.module.bias.register_hook(lambda _: 1 / 0)
                            try:
                                loss.backward()
                            except ZeroDivisionError:  # as an error of Gloo is
                                its.value += is_of_loss
                            self.optimizer.step()
                        steps.append(step.number)
                        if step.number == 2:
                            break
                self.assertEqual(len(steps), number)
                self.assert_said("an error of backward() was caught in the step")

    def test_state_that_was_not_given(self):
        """In the forms that programs keep it in."""
        class Average:
            def __init__(self, model):
                self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

            def state_dict(self):
                return self.shadow

            def load_state_dict(self, state):
                self.shadow = state

            def update(self):
                pass

        class Rate:
            def __init__(self, optimizer):
                self.optimizer, self.warmed_up = optimizer, [1]

            state_dict = load_state_dict = Average.update

        def around(average):
            return lambda: average.update()

        cases = [("its is an object with a state_dict", lambda: Average(self.ddp)),
                 ("its is an object with a state_dict", lambda: Rate(self.optimizer)),
                 ("its.average is an object with a state_dict", lambda: around(Average(self.ddp))),
                 ("its.average is a model", lambda: around(torch.optim.swa_utils.AveragedModel(self.ddp.module))),
                 ("its.__self__ is an object with a state_dict", lambda: Average(self.ddp).update),
                 (r"its.args\[0\] is a model", lambda: functools.partial(print, torch.nn.Linear(2, 1))),
                 (r"its\['one'\] is an optimizer", lambda: {"one": torch.optim.SGD([torch.ones(1)], 1.0)})]
        for words, make in cases:
            with self.subTest(words):
                job = self.join()
                its = make()
                self.assertEqual(self.train_beside(job, its), 4)
                self.assertRegex(self.only_said(), words)
                job = self.join(unchanged=(its, getattr(its, "__self__", None), *(each.cell_contents for each in getattr(
                    its, "__closure__", None) or ()), *getattr(its, "args", ()), *(its.values() if isinstance(its, dict) else ())))
                self.assertEqual((self.train_beside(job, its), self.heard()), (4, []))

    def test_iterators_that_a_new_process_begins_anew(self):
        def endless():
            while True:
                yield 1

        def by_generator(steps):
            numbers = iter(range(9))
            for step in steps:
                next(numbers)
                yield step

        class Its:
            def __init__(self):
                self.batches = itertools.cycle([1, 2])

        for words, make in (("its is an iterator (list_iterator)", lambda: iter([1, 2])), ("its is an iterator (generator)", endless),
                            ("its.batches is an iterator (cycle)", Its), ("its is an iterator (map)", lambda: map(str, endless()))):
            with self.subTest(words):
                its = make()
                self.assertEqual(self.train_beside(self.join(), its), 4)
                self.assertIn(words, self.only_said())
                self.assertEqual(self.train_beside(self.join(unchanged=(its, getattr(its, "batches", None))), its), 4)
                self.assertEqual(self.heard(), [])
        del its
        for words, around in (("by zip()", lambda steps: zip(steps, range(9))), ("by islice()", lambda steps: itertools.islice(steps, 4)),
                              ("numbers is an iterator (range_iterator)", by_generator),
                              ("by zip()", lambda steps: (each for each, _ in zip(enumerate(steps), endless())))):
            with self.subTest(words):
                self.assertEqual(self.train_around(self.join(), around), 4)
                self.assertIn(words, self.only_said())
        for around in (enumerate, lambda steps: (each for each in steps), lambda steps: map(lambda each: each, steps)):
            self.assertEqual(self.train_around(self.join(), around), 4)
        ended, made = iter([1]), (each for each in ())
        self.assertEqual([*ended, *made], [1])
        with open(os.devnull) as file:
            for its in (ended, made, enumerate(ended), itertools.count(), file):
                self.assertEqual(self.train_beside(self.join(), its), 4)
        self.assertEqual(self.heard(), [])

    def train_around(self, job, around):
        done = 0
        for step in around(job.steps([1] * 4)):
            if isinstance(step, tuple):
                step = next(each for each in step if hasattr(each, "committed"))
            with step:
                self.make_step(torch.ones(1, 2))
            done += 1
        return done

    def train_beside(self, job, its):
        """`its` is a local of the loop's frame."""
        done = 0
        for step in job.steps([1] * 4):
            with step:
                self.make_step(torch.ones(1, 2))
            done += 1
        return done

    def only_said(self):
        [said] = self.heard()
        return said

    def test_values_that_a_new_process_has_otherwise(self):
        """Tensors, also in lists, dicts and attributes, and what a function has from around it."""
        from ddprun import agreement

        def values(its):
            return agreement.plain_values([sys._getframe()], [], [], None)

        class Average:
            def __init__(self, value):
                self.shadow, self._parts = {"weight": torch.full((2, 2), value)}, [torch.full((3,), value)]

        def counting(value):
            n = int(value)
            return lambda: n

        makes = {"its": lambda value: torch.full((2,), value), "its['a']": lambda value: {"a": torch.tensor(value)},
                 "its[1]": lambda value: [0, torch.full((2,), value)], "its.shadow['weight']": Average, "its._parts[0]": Average,
                 "its.__self__.shadow['weight']": lambda value: types.MethodType(print, Average(value)), "its.n": counting}
        def check(makes, one, other):
            """A value that is equal on all ranks, and one that a rank has otherwise. A name may have a number behind it."""
            for name, make in makes.items():
                with self.subTest(name):
                    path = name.split(" ")[0]
                    its = [values(make(value)) for value in (one, one, other)]
                    [full] = [each for each in its[0] if each.endswith(f" {path}")]
                    self.assertIn(full, agreement.equal_values(its[:2])[0])
                    self.assertNotIn(full, agreement.equal_values(its)[0])
                    self.assertIn(f"{path} is ", agreement.difference_of_values([full], its, sys._getframe()))

        check(makes, 1.0, 2.0)
        logged = [values([1.0, torch.tensor(value)]) for value in (1.0, 2.0)]
        self.assertEqual([each for each in logged[0] if "its[" in each], [])  # a new process has not logged anything

        class Counts:
            def __init__(self, value):
                self.state = types.SimpleNamespace(seen=value, numbers=np.full(2, value))

        import numpy as np
        makes = {"its": lambda value: [0, value], "its['a']": lambda value: {"a": value}, "its.state.seen": Counts,
                 "its.state.numbers": Counts, "its[0].state.seen": lambda value: [Counts(value), print]}
        for make in (lambda value: {"a": (1, value)}, lambda value: {1, value}, lambda value: collections.deque([value]),
                     lambda value: list(range(5)) + [value] * 2000, lambda value: "x" * 300 + str(value), np.float64, lambda value: [{"a": [value]}],
                     lambda value: next(count for count in [itertools.count(value)])):
            makes[f"its {len(makes)}"] = make
        check(makes, 1, 2)
        self.assertEqual(values({"a", "b", "c"}), values({"c", "b", "a"}))
        of = lambda *texts: [{"x": text} if text else {} for text in texts]
        equal, unequal = agreement.equal_values(of("1", "1"))
        self.assertEqual(agreement.equal_values(of("", ""), equal, unequal), (["x"], set()))
        equal, unequal = agreement.equal_values(of("2", "3"), equal, unequal)
        self.assertEqual(agreement.equal_values(of("4", "4"), equal, unequal), ([], {"x"}))  # each rank's own

        class Module(torch.nn.Module):
            _seen = 0
        counts = [Module(), Module()]
        counts[1]._seen = 1
        its = [agreement.plain_values([], [], [each], None) for each in counts]
        self.assertIn("model  _seen", its[1])

    def test_orders_and_samples_that_cannot_be_put_back(self):
        class Own(torch.utils.data.Sampler):
            def __init__(self):
                self.rng = random.Random(1)

            def __len__(self):
                return 4

            def __iter__(self):
                return iter(self.rng.sample(range(4), 4))

        class Noisy(torch.utils.data.Dataset):
            def __init__(self):
                self.transforms = [types.SimpleNamespace(rng=torch.Generator())]

            def __len__(self):
                return 4

            def __getitem__(self, index):
                return torch.ones(2)

        class InPlace(torch.utils.data.Sampler):
            def __init__(self, at_most=2):
                self.order = list(range(4))

            def __len__(self):
                return 4

            def __iter__(self):
                random.shuffle(self.order)
                return iter(self.order)

        class Carried(InPlace):
            def state_dict(self):
                return {"order": list(self.order)}

            def load_state_dict(self, state):
                self.order = state["order"]

        def epochs(loader, **more):
            job = self.join(**more)
            for _ in job.epochs(3):
                self.assertEqual(self.train(job, loader), 4)
            return self.heard(), job

        noisy = Noisy()
        rng = noisy.transforms[0].rng
        [said], _ = epochs(DataLoader(noisy, sampler=Own()))
        self.assertRegex(said, r"Own\.rng is a generator .* cannot be put back")
        [said], _ = epochs(DataLoader(noisy))
        self.assertRegex(said, r"Noisy\.transforms\[0\]\.rng is a generator .* per_rank")
        self.assertEqual(epochs(DataLoader(noisy), per_rank={"rng": rng})[0], [])
        [said], _ = epochs(DataLoader(noisy, num_workers=1), per_rank={"rng": rng})
        self.assertNotIn("per_rank", said)
        self.assertEqual(epochs(DataLoader(noisy, num_workers=1), unchanged=(rng,))[0], [])

        del rng
        random.seed(3)
        [said], _ = epochs(DataLoader(range(4), sampler=InPlace()))
        self.assertRegex(said, "its InPlace changes order from one loop to the next")
        self.assertEqual(epochs(DataLoader(range(4), sampler=Carried()))[0], [])
        self.assertEqual(epochs(DataLoader(range(4), shuffle=True))[0], [])
        batches = [1, 2, 3, 4]
        job = self.join()
        for _ in job.epochs(2):
            self.train(job, batches)
            batches.reverse()
        self.assertRegex(self.only_said(), "its list of batches has changed")

        job = self.alone()  # a position that could not be gone on from is not given
        loader = DataLoader(range(4), sampler=InPlace())
        for epoch in job.epochs(2):
            for step in job.steps(loader):
                with step:
                    pass
                if epoch == 0:
                    self.assertTrue(job.position)
                else:
                    self.assertRaisesRegex(RuntimeError, "changes order", lambda: job.position)

    def test_other_parameters_are_trained_than_at_join(self):
        from ddprun import recovery
        job = self.join(self.model(find_unused_parameters=True))
        with self.assertRaises(recovery.CannotRecover):
            for step in job.steps([1] * 4):
                with step:
                    self.ddp.module.bias.requires_grad = job.committed < 2
                    self.lose(job)
                    self.make_step(torch.ones(1, 2))

    def test_a_step_that_is_made_again_gives_the_buffers_again(self):
        job = self.join()
        gave = []
        for step in job.steps([1] * 4):
            with step:
                self.optimizer.zero_grad()
                gave.append(self.ddp.require_forward_param_sync)
                with self.ddp.no_sync():
                    loss = self.ddp(torch.ones(1, 2)).sum()
                    self.lose(job)
                    loss.backward()
                self.make_step(torch.ones(1, 2))
        self.assertEqual((gave, job._recovery._generation), ([True] * 5, 1))
        self.assertEqual(self.heard(), [])

    def test_a_batch_that_the_step_writes_into(self):
        from ddprun import recovery
        job = self.join()
        with self.assertRaises(recovery.CannotRecover):
            for step in job.steps([torch.ones(1, 2) for _ in range(3)]):
                with step as batch:
                    self.make_step(batch)
                    batch.mul_(2)
                job._is_again = True  # as if a rank had died in it
        self.assert_said("the step writes into it")

    def joined_with_buffers(self):
        return self.join(DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))))

    def make_step_with_a_call(self, job, batch=None):
        self.make_step(torch.rand(4, 2) if batch is None else batch)
        job._recovery._calls_at_entry -= 1  # as if there were another rank

    def test_what_is_written_of_a_step(self):
        import numpy.random  # which a program may load in the middle
        job = self.joined_with_buffers()
        recovery = job._recovery
        norm = lambda: self.ddp.module[1]
        steps = iter(job.steps([(torch.rand(4, 2), 1) for _ in range(12)]))
        for number in range(12):
            before = recovery.generators.now()
            step = next(steps)
            with step as batch:
                for place, is_there in ((0, True), (1, False)):
                    record = recovery._record(number, place)
                    self.assertEqual(record is not None, is_there)
                (position, *_), noted, restore = recovery._own.read(recovery._record(number, False))
                self.assertEqual((position, noted), ((0, 0, number), before), "no batch was drawn")
                if number == 6:  # other memory
                    norm().running_mean = norm().running_mean.clone()
                    norm().running_var.data = torch.ones(3)
                self.make_step_with_a_call(job, batch[0])
                now = recovery.generators.now()
                self.assertIsNone(recovery._own.difference_from(recovery._record(number, True)))
            self.assertTrue(step.committed)
            committed = int.from_bytes(bytes(recovery._link._page)[928:936], sys.byteorder)  # worker_link.h
            self.assertEqual((job.committed, committed), (number + 1, number + 1))
        torch.rand(1), random.random(), numpy.random.rand()
        weight = norm().running_mean.clone()
        norm().running_mean.zero_()
        (position, *_), noted, restore = recovery._own.read(recovery._record(number, True))
        restore()
        self.assertEqual((position, noted), ((0, 0, number + 1), None))
        self.assertEqual(recovery.generators.now(), now)
        self.assertTrue(torch.equal(norm().running_mean, weight))
        self.assertEqual(self.heard(), [])

    def test_settings_that_need_more_room(self):
        class Words:
            words = "x"

            def state_dict(self):
                return {"words": self.words}

            def load_state_dict(self, state):
                self.words = state["words"]

        words = Words()
        job = self.join(per_rank={"words": words})
        for step in job.steps([1] * 6):
            words.words *= 16
            with step:
                self.make_step(torch.ones(1, 2))
                record = job._recovery._record(step.number, True)
                self.assertIsNone(job._recovery._own.difference_from(record))
        self.assertEqual((len(words.words), self.heard()), (16 ** 6, []))

    def test_what_is_amiss_in_a_later_step(self):
        from unittest import mock

        def make_no_call(job):
            self.make_step(torch.rand(4, 2))
            job._recovery._calls_at_entry = job._recovery._calls.value

        with mock.patch.object(torch.distributed, "get_world_size", return_value=2):
            job = self.joined_with_buffers()
            for number, step in enumerate(job.steps([1] * 8)):
                with step:
                    if number == 6:
                        self.assertTrue(job._recovery._is_usual())
                        make_no_call(job)
                    else:
                        self.make_step_with_a_call(job)
            self.assert_said("do not call each other in a step")
            self.assertEqual(job.committed, 8)

    def test_outputs_that_are_no_tensor(self):
        class Two(torch.nn.Linear):
            def forward(self, batch):
                return {"first": super().forward(batch), "rest": [batch, 3]}

        job = self.join(DistributedDataParallel(Two(2, 1)))
        given = []
        for number, step in enumerate(job.steps([1] * 6)):
            with step:
                self.optimizer.zero_grad()
                with torch.no_grad():
                    self.ddp(torch.ones(1, 2))
                self.ddp(torch.ones(1, 2))["first"].sum().backward()
                given.append(job._recovery._has_given)
                self.optimizer.step()
        self.assertEqual(given, [True] * 6)
        self.assertEqual(self.heard(), [])

    def test_a_buffer_that_is_another(self):
        class Counts(torch.nn.Linear):
            def __init__(self):
                super().__init__(2, 1)
                self.register_buffer("counts", torch.zeros(100_000))

        smaller, gone, other_type = torch.zeros(1), None, torch.zeros(100_000, dtype=torch.int32)
        for other in (smaller, gone, other_type):
            for when in (0, 6):  # before it is offered, and in a usual step
                with self.subTest(other, when=when):
                    job = self.join(DistributedDataParallel(Counts(), broadcast_buffers=False))
                    for number, step in enumerate(job.steps([1] * 8)):
                        with step:
                            if number == when:
                                self.ddp.module.counts = other
                            self.make_step_with_a_call(job, torch.ones(1, 2))
                    self.assert_said("the buffer counts", "another size, type or device")
                    self.assertEqual(job.committed, 8)

    def test_a_change_of_a_weight_is_seen(self):
        job = self.join()
        weight, bias = self.ddp.module.weight, self.ddp.module.bias
        changes = [lambda: weight.add_(1), lambda: bias[0].mul_(2), lambda: torch.nn.init.zeros_(weight),
                   lambda: weight.copy_(torch.ones(1, 2)), lambda: torch._foreach_add_([weight, bias], 1)]
        for change in changes:
            before = job._recovery._shared.version_of_weights()
            with torch.no_grad():
                change()
            self.assertGreater(job._recovery._shared.version_of_weights(), before)

    def test_copies_of_batches(self):
        from ddprun.loading import copy_of, versions
        first, second = torch.ones(1), torch.ones(1)
        batch = first, second
        self.assertEqual(copy_of(batch), batch)
        batch = {"a": [first, (second, [3])], "b": 4}
        copy = copy_of(batch)
        self.assertEqual(copy, batch)
        for place in (lambda of: of, lambda of: of["a"], lambda of: of["a"][1][1]):
            self.assertIsNot(place(copy), place(batch))
        self.assertIs(copy["a"][0], first)
        before = versions(batch)
        self.assertEqual(before, versions(copy))
        second.add_(1)
        self.assertNotEqual(versions(batch), before)
        endless = []
        endless.append(endless)
        for function in (copy_of, versions):
            self.assertRaises(RecursionError, function, endless)

    def alone(self):
        """As without ddprun."""
        from unittest import mock
        with mock.patch.dict(os.environ):
            del os.environ["DDPRUN_REPLACES"]
            return self.join()

    def test_without_ddprun(self):
        job = self.alone()
        seen = []
        for epoch in job.epochs(2):
            self.assertEqual(len(job.steps([1, 2, 3], per_step=2)), 2)
            for step in job.steps([1, 2, 3], per_step=2):
                with step as batches:
                    self.make_step(torch.ones(1, 2))
                seen.append((epoch, batches, step.epoch, step.number, step.committed))
        self.assertEqual((job.committed, job.is_replaceable), (4, False))
        self.assertEqual(seen, [(0, [1, 2], 0, 0, True), (0, [3], 0, 1, True), (1, [1, 2], 1, 2, True), (1, [3], 1, 3, True)])
        self.assertEqual(self.heard(), [])


class RandomNumbers(unittest.TestCase):
    """What is read from the generators is all of their state."""

    def setUp(self):
        sys.path.insert(0, str(SOURCE / "worker_lib/python"))
        import numpy as np
        usual = np.random.get_bit_generator()
        self.addCleanup(np.random.set_bit_generator, usual)

    def test_each_draw_is_seen_and_put_back(self):
        import numpy as np
        import torch
        from ddprun.worker_state import Generators
        generators = Generators(None)

        def draws():
            return [torch.rand(7), torch.randn(1), torch.randn(1, dtype=torch.float64), torch.randn(20), torch.get_rng_state(),
                    random.random(), random.gauss(0, 1), float(np.random.randn()), np.random.rand(3).tolist()]

        of_torch = [lambda: torch.rand(5), lambda: torch.randn(3), lambda: torch.randn(100), lambda: torch.randperm(700),
                    lambda: torch.randn(3, dtype=torch.float64), lambda: torch.normal(0.0, 1.0, (1,)),
                    lambda: torch.distributions.Normal(0.0, 1.0).sample(), lambda: torch.manual_seed(5)]
        others = [random.random, lambda: random.gauss(0, 1), lambda: random.sample(range(900), 700), lambda: np.random.rand(2),
                  lambda: np.random.randn(), lambda: np.random.permutation(900)]
        for kind in (np.random.MT19937, np.random.PCG64):
            np.random.set_bit_generator(kind(3))
            for draw in of_torch + others:
                before = generators.now()
                self.assertEqual(generators.now(), before)
                draw()
                after = marshal.loads(marshal.dumps(generators.now()))
                self.assertNotEqual(before, after, draw)
                expected = draws()
                np.random.set_bit_generator(np.random.Philox(1))
                generators.restore(after)
                for was, now in zip(expected, draws()):
                    self.assertTrue(torch.equal(was, now) if isinstance(was, torch.Tensor) else was == now, draw)
                generators.restore(before)
                self.assertEqual(generators.now(), before, draw)


class Forks(unittest.TestCase):
    """A loader's processes are forked when no thread of Gloo's enters the interpreter. (ctest preloads what makes such a
    thread slow: if the fork did not wait for it, one of the first children would hang.)"""

    def test_come_between_calls(self):
        sys.path.insert(0, str(SOURCE / "worker_lib/python"))
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader
        from ddprun import loading
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        loader = DataLoader([1, 2], num_workers=1, timeout=20)
        for _ in range(60):
            dist.all_reduce(torch.ones(4))
            self.assertEqual([batch.item() for batch in loading.Batches(loader)], [1, 2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
