"""Python programs over NCCL whose ranks are replaced in place, on the fake GPU (tests/support/fake_gpu): PyTorch's own
ProcessGroupNCCL, with ranks that are killed at each site of a step and at random moments.

  python_nccl.py DDPRUN DDPCTL FAKE_GPU [TEST…]

FAKE_GPU is the folder of the fake GPU's libraries, or `none`: then it runs on this machine's GPUs. With DDPRUN_TEST_FULL=1 all
combinations of Sites are made, and 200 random kills.
"""
import ctypes
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import python_replace
from python_replace import DDPRUN, FULL, SOURCE

FAKE_GPU = sys.argv.pop(1)
ONE_GPU = "DDPRUN_TEST_ONE_GPU" in os.environ  # real ranks share it (scripts/gpu_check)
ABORT_MS = 1000  # as seen on an H200


def on_gpu(environment):
    """For ranks on the fake GPU; on real GPUs each rank has its own."""
    if FAKE_GPU == "none":
        return {**environment, "NCCL_NVLS_ENABLE": "0"}
    its = [str(Path(FAKE_GPU).resolve() / name) for name in ("libcudart.so.13", "libcuda.so.1", "libnccl.so.2")]
    return {**environment, "LD_PRELOAD": ":".join(its), "FAKE_NCCL_ABORT_MS": str(ABORT_MS)}


class Training(python_replace.Training):
    variables = {}

    def __init__(self, folder, ranks, what, *options, nodes=1):
        what = {"backend": "nccl", "device": "cuda:0" if ONE_GPU else "cuda:local", "one_gpu": ONE_GPU, **what}
        self.variables = {**self.variables, **what.pop("variables", {})}
        super().__init__(folder, ranks, what, *options, nodes=nodes)

    def environment(self, node):
        return {**on_gpu(super().environment(node)), **self.variables}


STAND = '''
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
ones = torch.full((300_000,), rank + 1.0, device="cuda")
dist.all_reduce(ones)
assert ones.eq(3).all()
got = [torch.zeros(3, device="cuda") for _ in range(2)]
dist.all_to_all(got, [torch.full((3,), 10.0 * rank + to, device="cuda") for to in range(2)])
assert [each[0].item() for each in got] == [rank, 10 + rank], got
if rank == 0:
    dist.send(torch.arange(100_000.0, device="cuda"), 1)
else:
    received = torch.empty(100_000, device="cuda")
    dist.recv(received, 0)
    assert received.equal(torch.arange(100_000.0, device="cuda"))

# Each rank draws its own numbers, the same each time, and the host does not draw any.
before = torch.get_rng_state()
drawn = []
for _ in range(2):
    torch.cuda.manual_seed(rank)
    drawn.append(nn.functional.dropout(torch.ones(100, device="cuda"), 0.5))
    drawn.append(torch.randn(100, device="cuda"))
assert drawn[0].equal(drawn[2]) and drawn[1].equal(drawn[3]) and not drawn[1].equal(torch.randn(100, device="cuda"))
assert torch.get_rng_state().equal(before)

# The bits of a step are the CPU's.
def trained(device):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(6, 8).to(device)), torch.arange(6).remainder(4).to(device)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return [each.detach().cpu() for each in model.state_dict().values()]
assert all(one.equal(other) for one, other in zip(trained("cpu"), trained("cuda")))

# SyncBatchNorm of two ranks is BatchNorm of both batches.
torch.manual_seed(0)
inputs, weights = torch.randn(12, 6, 5), torch.arange(12.0).view(12, 1, 1)
alone, its_input = nn.BatchNorm1d(6), inputs.clone().requires_grad_()
(alone(its_input).square() * weights).sum().backward()
both = DistributedDataParallel(nn.SyncBatchNorm(6).cuda(), device_ids=[rank])
part = slice(0, 5) if rank == 0 else slice(5, 12)
own = inputs[part].cuda().requires_grad_()
(both(own).square() * weights[part].cuda()).sum().backward()
torch.testing.assert_close(own.grad.cpu(), its_input.grad[part], rtol=1e-4, atol=1e-4)
torch.testing.assert_close(both.module.running_var.cpu(), alone.running_var)
torch.testing.assert_close(2 * both.module.weight.grad.cpu(), alone.weight.grad, rtol=1e-4, atol=1e-3)
dist.destroy_process_group()
'''


@unittest.skipIf(FAKE_GPU == "none", "is about the fake GPU")
class Stand(unittest.TestCase):
    """The fake GPU does what it says."""

    def test_calls_and_operators(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text(STAND)
            done = subprocess.run([DDPRUN, "--nproc-per-node=2", program], capture_output=True, text=True, env=on_gpu(
                {**os.environ, "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1", "DDPRUN_CONTROL_DIR": folder}))
        self.assertEqual((done.returncode, "not emulated" in done.stderr), (0, False), done.stderr)


class Replaced(python_replace.Replaced):
    """At random moments."""
    training = Training
    test_accumulation_amp_and_processes_that_load = test_a_second_death_during_recovery = test_600_kills = None

    def test_three_ranks_end_with_the_bits_of_an_undisturbed_run(self):
        self.disturb(3, {}, 4, seed=1)

    def test_accumulation_amp_processes_that_load_and_a_group_of_both_backends(self):
        self.disturb(2, {"samples": 480, "workers": 2, "per_step": 3, "amp": True, "set_to_none": False,
                         "backend": "cpu:gloo,cuda:nccl"}, 2, seed=2)

    def test_the_old_communicators_are_freed_later(self):
        self.disturb(3, {"variables": {"DDPRUN_NCCL_FREE_LATER": "1"}, "sync_batch_norm": True}, 3, seed=3)

    def test_a_peers_death_is_noticed_as_over_sockets(self):
        """PyTorch's watchdog, which ends a process for that, does not end the survivors."""
        self.disturb(2, {"variables": {"FAKE_NCCL_NOTICES": "1"}}, 2, seed=4)

    def test_a_second_death_before_the_group_is_made(self):
        """While the old communicators end. A death while a rank that is a step behind is given the state has all ranks begin anew."""
        self.disturb(3, {"variables": {"FAKE_NCCL_INIT_MS": "30"}, "backend": "cpu:gloo,cuda:nccl"}, 10 if FULL else 2, seed=5,
                     during_recovery=1.0)

    @unittest.skipUnless(FULL, "only with DDPRUN_TEST_FULL")
    def test_200_kills(self):
        cases = [(2, {}), (3, {"amp": True}), (3, {"sync_batch_norm": True}), (2, {"workers": 2, "per_step": 3})]
        for number, (ranks, what) in enumerate(cases):
            with self.subTest(ranks=ranks, what=what):
                self.disturb(ranks, {**what, "variables": {"FAKE_NCCL_ABORT_MS": "100"}}, 50, seed=10 + number)


SITES = '''
import ctypes, hashlib, json, os, pathlib, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import ddprun

folder, what = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
torch.set_num_threads(1)
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
batch_norm = nn.SyncBatchNorm if what["kind"] == "sync" else nn.BatchNorm1d
model = nn.Sequential(nn.Linear(16, 48), batch_norm(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10)).to(device)
ddp = DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=0.01, find_unused_parameters=what["kind"] == "unused")
optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3, foreach=True)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=5) if what["kind"] == "amp" else None
parts = 3 if what["kind"] == "accumulation" else 1
torch.manual_seed(50 + rank)
ballast = torch.empty(what.get("ballast_mb", 0) << 20, dtype=torch.uint8, device=device)
victim = rank == 1 and not (folder / "has-died").exists()


def site(name):
    if victim and name == what["site"] and training.committed in (7, what["steps"]) and not (folder / "has-died").exists():
        (folder / "has-died").touch()
        if "FAKE_GPU_BROKEN" in os.environ:
            pathlib.Path(os.environ["FAKE_GPU_BROKEN"], str(device.index)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "reduced" and rank in what.get("gpu_fails", []) and training.committed == 7 and not (folder / f"failed-{rank}").exists():
        (folder / f"failed-{rank}").touch()
        ctypes.CDLL("libcudart.so.13").fake_gpu_break(719)


def metric(name):
    """A call between two steps, or behind the last one: the program must not see what an ended one leaves."""
    if what["site"] != name:
        return
    (folder / f"before-{name}-{rank}").touch()
    while victim and not (folder / f"before-{name}-0").exists():  # a rank that is still in its step makes it again
        time.sleep(0.01)
    site(name)
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones)
    if ones.item() != world:
        (folder / "garbage").write_text(f"{name}: {ones.item()}")


if what.get("hears_late") and rank == 0:
    from ddprun import in_place
    await_news = in_place._c.link_await_news
    def await_news_late(*arguments):
        news = await_news(*arguments)
        time.sleep(0.5)
        return news
    in_place._c.link_await_news = await_news_late


def loss_of(inputs, targets):
    output = ddp(inputs)
    site("forward")
    return nn.functional.cross_entropy(output, targets) / parts


batches = [(torch.randn(8, 16), torch.randint(0, 10, (8,))) for _ in range(what["steps"] * parts)]
training = ddprun.recoverable(ddp, optimizer, scaler=scaler)
list(model.parameters())[2].register_hook(lambda gradient: site("backward"))
(folder / f"ready-{rank}-{os.getpid()}").touch()
for step in training.steps(batches, per_step=parts):
    with step as its:
        optimizer.zero_grad()
        for number, (inputs, targets) in enumerate(its):
            with ddp.no_sync() if number + 1 < parts else torch.enable_grad():
                with torch.autocast("cuda", enabled=scaler is not None):
                    loss = loss_of(inputs.to(device), targets.to(device))
                (scaler.scale(loss) if scaler else loss).backward()
        site("reduced")
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        site("stepped")
    if step.committed:
        site("committed")
    if training.committed == 7:
        metric("between")
    while step.number == 4 and not (folder / "go").exists():  # a standby waits by then
        time.sleep(0.01)
metric("behind")
total = hashlib.sha256()
for tensor in [*model.parameters(), *model.buffers(), *(its[name] for _, its in sorted(optimizer.state_dict()["state"].items()) for name in sorted(its))]:
    total.update(tensor.detach().cpu().numpy().tobytes())
total.update(torch.cuda.get_rng_state(device).numpy().tobytes())
total.update(repr(scaler and scaler.state_dict()).encode())
(folder / f"end-{rank}").write_text(json.dumps({"hash": total.hexdigest(), "is_finite": all(each.isfinite().all().item() for each in model.parameters()),
                                                "committed": training.committed}))
'''


class SiteTraining(Training):
    def __init__(self, folder, ranks, what, *options, nodes=1):
        super().__init__(folder, ranks, what, *options, nodes=nodes)
        self.program.write_text(SITES)


class Sites(unittest.TestCase):
    """A rank dies where the step is in the middle of something; no step is lost, and the bits are those of an undisturbed run."""
    KINDS = "plain", "amp", "accumulation", "sync", "unused"
    SITES = "forward", "backward", "reduced", "stepped", "committed"
    undisturbed = {}  # what trainings end with, by ranks and kind

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def expected(self, ranks, kind):
        if (ranks, kind) not in self.undisturbed:
            folder = self.folder / f"plain-{ranks}-{kind}"
            with SiteTraining(folder, ranks, {"kind": kind, "site": None, "steps": 16}, "--max-restarts=0") as training:
                (folder / "go").touch()
                self.undisturbed[ranks, kind] = training.wait()
        return self.undisturbed[ranks, kind]

    def killed(self, ranks, kind, site, expected, variables):
        folder = self.folder / f"{ranks}-{kind}-{site}"
        what = {"kind": kind, "site": site, "steps": 16, "variables": variables}
        with SiteTraining(folder, ranks, what, f"--standby={ranks}") as training:
            training.until(training.workers, 0.05)
            (folder / "go").touch()
            ends = training.wait()
            recovered, rounds = training.events("recovered"), training.events("round_started")
        self.assertEqual(([each["how"] for each in recovered], len(rounds)), (["replaced"], 1), training.said())
        self.assertEqual(ends, expected, training.said())
        self.assertTrue(all(each["is_finite"] for each in ends))
        return recovered[0]

    def test_each_site(self):
        both = list(itertools.product((2, 3), self.KINDS, self.SITES))
        if not FULL:  # each kind and each site once, ranks by turns
            both = [(2 + one % 2, kind, site) for one, kind in enumerate(self.KINDS)
                    for other, site in enumerate(self.SITES) if (one + 2 * other) % 5 == 0]
        for ranks, kind, site in both:
            with self.subTest(ranks=ranks, kind=kind, site=site):
                self.killed(ranks, kind, site, self.expected(ranks, kind), {"FAKE_NCCL_ABORT_MS": "100"})

    def test_a_rank_that_hears_late_commits_nothing_of_what_others_have_ended(self):
        """The kernel of a rank ends when its neighbour's is ended, and says nothing of that."""
        expected = self.expected(3, "plain")
        for site in ("backward", "committed") if FULL else ("backward",):
            with self.subTest(site=site):
                folder = self.folder / f"late-{site}"
                what = {"kind": "plain", "site": site, "steps": 16, "hears_late": True, "variables": {"FAKE_NCCL_ABORT_MS": "100"}}
                with SiteTraining(folder, 3, what, "--standby=3") as training:
                    training.until(training.workers, 0.05)
                    (folder / "go").touch()
                    ends = training.wait()
                self.assertEqual(ends, expected, training.said())

    def test_the_program_sees_nothing_of_a_call_that_was_ended(self):
        """Between two steps, and behind the last one."""
        expected = self.expected(2, "plain")
        for site in ("between", "behind"):
            with self.subTest(site=site):
                folder = self.folder / site
                with SiteTraining(folder, 2, {"kind": "plain", "site": site, "steps": 16}, "--standby=2") as training:
                    training.until(training.workers, 0.05)
                    (folder / "go").touch()
                    ends = training.wait()
                    rounds, said = training.events("round_started"), training.said()
                self.assertFalse((folder / "garbage").exists(), said)
                self.assertEqual((ends, len(rounds)), (expected, 2), said)

    def test_a_gpu_that_has_failed_gets_no_other_rank(self):
        """All ranks begin anew, also where it is a survivor's GPU."""
        expected = self.expected(2, "plain")
        for fails, site in ([1], None), ([0], "reduced"):
            with self.subTest(fails=fails, site=site):
                folder = self.folder / f"fails-{fails}"
                what = {"kind": "plain", "site": site, "steps": 16, "gpu_fails": fails}
                with SiteTraining(folder, 2, what, "--standby=2") as training:
                    training.until(training.workers, 0.05)
                    (folder / "go").touch()
                    ends = training.wait()
                    rounds, said = training.events("round_started"), training.said()
                self.assertEqual((ends, len(rounds)), (expected, 2), said)
                self.assertIn("its GPU has failed", said)

    def test_a_gpu_that_fails_with_its_process_gets_no_other_one(self):
        """Its standby, which has a context there, says so."""
        expected, broken = self.expected(2, "plain"), self.folder / "broken"
        broken.mkdir()
        ends, rounds, said = self.killed_anyhow("broken", {"variables": {"FAKE_GPU_BROKEN": str(broken)}})
        self.assertEqual((ends, len(rounds)), (expected, 2), said)
        self.assertIn("its GPU has failed", said)

    def killed_anyhow(self, name, what):
        folder = self.folder / name
        with SiteTraining(folder, 2, {"kind": "plain", "site": "backward", "steps": 16, **what}, "--standby=2") as training:
            training.until(training.workers, 0.05)
            self.status = training.status(0)
            (folder / "go").touch()
            return training.wait(), training.events("round_started"), training.said()

    def gpus(self, megabytes, late_ms):
        """Each rank takes 1.5 GB, and a second model has no room beside it."""
        return {"ballast_mb": 1500, "variables": {
            "FAKE_GPU_MEMORY": str(self.folder / f"memory-{megabytes}-{late_ms}"), "FAKE_GPU_MEMORY_MB": str(megabytes),
            "FAKE_GPU_MEMORY_LATE_MS": str(late_ms), "FAKE_NCCL_ABORT_MS": "100"}}

    def test_a_standby_without_room_on_its_gpu_comes_when_the_memory_is_back(self):
        expected = self.expected(2, "plain")
        for megabytes in (2700, 2000) if FULL else (2700,):  # room for a context; not even for that
            with self.subTest(megabytes=megabytes):
                ends, rounds, said = self.killed_anyhow(f"late-{megabytes}", self.gpus(megabytes, 300))
                self.assertEqual((ends, len(rounds)), (expected, 1), said)
                self.assertIn("the program's set-up is made then: GPU ", said)
                self.assertIn("GiB free", self.status["replacement"]["why_unprepared"])

    @unittest.skipUnless(FULL, "only with DDPRUN_TEST_FULL; in C++ it is in the usual run")
    def test_memory_that_does_not_come_back_is_said_and_all_begin_anew(self):
        expected = self.expected(2, "plain")
        ends, rounds, said = self.killed_anyhow("never", self.gpus(2700, 6000))
        self.assertEqual(ends, expected, said)
        self.assertGreater(len(rounds), 1, said)
        self.assertIn("the memory of the process before is not back after 5 s: its GPU has ", said)

    def test_a_host_that_has_run_ahead_commits_nothing_of_an_aborted_reduction(self):
        """Reductions are slow, so the survivors' hosts have queued all of the step when its reduction is ended."""
        expected = self.expected(2, "plain")
        for site in ("backward", "reduced"):
            with self.subTest(site=site):
                self.killed(2, "plain", site, expected, {"FAKE_NCCL_SLOW_MS": "100"})


class Refused(unittest.TestCase):
    """What cannot be replaced over NCCL is said in one sentence. In this process, which is all ranks, on the fake GPU."""

    @classmethod
    def setUpClass(cls):
        os.environ["LOCAL_RANK"] = "0"
        cls.store, cls.agent, cls.groups = python_replace.without_agent("nccl")
        global ddprun, torch, nn, DistributedDataParallel
        import ddprun
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

    heard = python_replace.Refused.heard

    def setUp(self):
        self.groups.refused = None
        self.groups.old.clear()
        self.heard()

    def recoverable(self):
        self.model = DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[0])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        return ddprun.recoverable(self.model, self.optimizer)

    def make_step(self, batch):
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()

    def assert_said(self, *words):
        said = self.heard()
        self.assertEqual(len(said), 1, said)
        for word in words:
            self.assertIn(word, said[0])

    def refused_with(self, variables=None, capability=(8, 0), version=(2, 28, 9)):
        with mock.patch.dict(os.environ, variables or {}), mock.patch("torch.cuda.get_device_capability", lambda: capability), \
                mock.patch("torch.cuda.nccl.version", lambda: version):
            self.recoverable()

    def test_an_older_nccl(self):
        self.refused_with(version=(2, 27, 3))
        self.assert_said("its NCCL is 2.27.3", "2.28.9")

    def test_collnet(self):
        self.refused_with({"NCCL_COLLNET_ENABLE": "1"})
        self.assert_said("NCCL_COLLNET_ENABLE")

    def test_nvls(self):
        self.refused_with({"LOCAL_WORLD_SIZE": "2"}, capability=(9, 0))
        self.assert_said("set NCCL_NVLS_ENABLE=0")
        self.refused_with({"LOCAL_WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "0"}, capability=(9, 0))
        self.assertEqual(self.heard(), [])

    def test_an_optimizer_on_another_stream(self):
        other = torch.cuda.Stream()
        for step in self.recoverable().steps([torch.ones(1, 4).cuda()]):
            with step as batch:
                self.model(batch).sum().backward()
                with torch.cuda.stream(other):
                    self.optimizer.step()
        self.assert_said("on another stream")

    def test_a_captured_step(self):
        for step in self.recoverable().steps([torch.ones(1, 4).cuda()]):
            with step as batch:
                with mock.patch("torch.cuda.is_current_stream_capturing", lambda: True):
                    loss = self.model(batch).sum()
                loss.backward()
                self.optimizer.step()
        self.assert_said("CUDA graph")

    def test_pytorchs_variables_are_those_of_the_program(self):
        self.recoverable()
        self.assertNotIn("TORCH_NCCL_ASYNC_ERROR_HANDLING", os.environ)
        with mock.patch.dict(os.environ, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}):
            self.recoverable()
            self.assertEqual(os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "3")

    def test_the_gate_is_one_wait_for_an_event_in_each_step(self):
        waits, copies = [], []
        training = self.recoverable()
        with mock.patch("torch.cuda.Event.synchronize", lambda event: waits.append(event)), \
                mock.patch("torch.cuda.synchronize", lambda *_: waits.append(None)), \
                mock.patch.object(torch.Tensor, "clone", lambda tensor: copies.append(tensor)):
            for step in training.steps([torch.ones(1, 4).cuda() for _ in range(12)]):
                with step as batch:
                    self.make_step(batch)
                if step.number == 7:  # up to the eighth one the ranks agree on values
                    waits.clear(), copies.clear()
        self.assertEqual((len(waits), len(copies)), (4, 0))

    def costs(self, steps, make_step):
        """How often the host has waited for the GPU, by the count of the fake one, and what was allocated there, in the last four of
        twelve steps: at the eighth one the ranks agree on values."""
        def now():
            torch.cuda.synchronize()
            return waits(), torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
        waits = ctypes.CDLL("libcudart.so.13").fake_gpu_waits
        waits.restype = ctypes.c_uint64
        for number, step in enumerate(steps):
            if number == 8:
                before = now()
            make_step(step)
        return [after - was for was, after in zip(before, now())]

    def test_a_step_costs_one_wait_more_than_without_recoverable_and_no_memory(self):
        batches = [torch.ones(1, 4).cuda() for _ in range(12)]

        def make_recoverable(step):
            with step as batch:
                self.make_step(batch)
        recoverable = self.costs(self.recoverable().steps(batches), make_recoverable)
        self.assertEqual(self.heard(), [])
        self.model = DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[0])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        plain = self.costs(batches, self.make_step)
        self.assertEqual(recoverable, [plain[0] + 4, plain[1]])


if __name__ == "__main__":
    unittest.main(verbosity=2)
