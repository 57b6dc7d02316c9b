"""Snapshots of Python programs in the agent's memory (ddprun.keep): all workers are killed at once, and the training goes on from
a few steps before, without a disk, and ends with the bits of one that nobody disturbed.

  python_keep.py DDPRUN DDPCTL [TEST…]

With DDPRUN_TEST_FULL=1 it kills more often, with and without standbys. DDPRUN_TEST_SEED=N chooses the moments.
"""
import ctypes
import json
import os
import random
import shutil
import signal
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
LIMIT_S = 300
EVERY = 5

# A model with dropout and batch statistics, which draw from and have what only one rank has.
TRAINING = '''
import hashlib, json, os, pathlib, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import ddprun

folder, steps, every = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(32), nn.Linear(32, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3)
torch.manual_seed(1000 + rank)
kept = ddprun.kept()
prepared = "DDPRUN_PREPARED" in os.environ
with open(folder / f"kept-{rank}", "a") as file:
    print(f"{kept.step if kept else 0}{' prepared' if prepared else ''}", file=file)
if prepared:
    ddprun.keep(10**9, per_rank="a standby keeps nothing")
del prepared  # a value of the loop's that a new process has another one of has all ranks begin anew
if kept:
    model.load_state_dict(kept.model)
    optimizer.load_state_dict(kept.optimizer)
    torch.set_rng_state(kept.per_rank)
log = [os.open(folder / f"steps-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)]
training = ddprun.recoverable(ddp, optimizer)
for its in training.steps(range(kept.step + 1 if kept else 1, steps + 1)):
    with its as step:
        optimizer.zero_grad()
        batch = torch.Generator().manual_seed(step * 100 + rank)
        inputs, targets = torch.randn(8, 16, generator=batch), torch.randint(0, 10, (8,), generator=batch)
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
    if not its.committed:
        continue
    os.write(log[0], f"{step} {os.getpid()}\\n".encode())
    if every and step % every == 0:
        ddprun.keep(step, model=model, optimizer=optimizer, per_rank=torch.get_rng_state())
    if not (folder / "killed").exists():
        time.sleep(0.003)  # steps take longer as long as ranks are killed
    while training.committed > 5 and (folder / "hold").exists():
        time.sleep(0.01)
total = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
for tensor in [*model.parameters(), *model.buffers(), *(each for state in optimizer.state_dict()["state"].values()
                                                        for each in state.values())]:
    total.update(tensor.detach().numpy().tobytes())
(folder / f"end-{rank}").write_text(total.hexdigest())
'''

# Ranks without a process group; what they keep is of all kinds.
CASES = '''
import collections, os, pathlib, signal, sys, time
import ddprun

folder, case = pathlib.Path(sys.argv[1]), sys.argv[2]
before = "torch" in sys.modules
if case == "no hooks" and os.environ["RANK"] == "1":
    sys.exit(0)  # no rank waits for another one
kept = ddprun.kept()
if case in ("nothing", "no hooks"):
    ddprun.keep(0, per_rank=2, replicated=3)
    assert kept is None and not before
    assert "torch" not in sys.modules or case == "no hooks"
    sys.exit(0)
import torch
rank, round_number = int(os.environ.get("RANK", 0)), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def meet(where):
    """Ranks of a training wait for each other in each step."""
    (folder / f"{where}-{rank}").touch()
    while not all((folder / f"{where}-{each}").exists() for each in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.005)


def all_die():
    meet(f"dies-{round_number}")
    os.kill(os.getpid(), signal.SIGKILL)


def replicated_at(step):
    return {"weight": torch.full((5000,), float(step)), "odd": torch.arange(step, step + 7, dtype=torch.uint8)}


def say(what):
    (folder / f"said-{rank}").write_text(str(what))


if case == "damaged":
    if kept:
        assert kept.per_rank == {"rank": rank} and kept.model is None and kept.optimizer is None
        for name, tensor in replicated_at(kept.step).items():
            assert torch.equal(kept.replicated[name], tensor), name
        with open(folder / f"said-{rank}", "a") as file:
            print(kept.step, file=file)
    if round_number < 2:
        for step in (10,) if kept else (5, 10):
            ddprun.keep(step, per_rank={"rank": rank}, replicated=replicated_at(step))
            meet(f"made-{step}-{round_number}")
        if rank == 0:  # step 10 is in the second slot
            file = int(os.environ["DDPRUN_SNAPSHOT_FD"])
            size = os.fstat(file).st_size
            os.pwrite(file, b"Z" * 128, 4096 + 128) if round_number == 0 else os.pwrite(file, b"Z" * 8192, size - 12288)
        all_die()
    for step in range(20, 26):
        ddprun.keep(step, replicated={"of": torch.ones(10 if step == 20 else 10 + rank)})
        meet(f"made-{step}")
elif case == "kinds":
    def state_of(rank):
        torch.manual_seed(rank)
        weight = torch.randn(300, 7)
        states = collections.OrderedDict(weight=weight, tied=weight, by_column=weight.t(), empty=torch.empty(0, 3))
        states._metadata = {"version": 2}
        return {"dict": states, 5: [torch.tensor(3, dtype=torch.bfloat16), (torch.tensor([True, False, True]), "text", None)],
                "parameter": torch.nn.Parameter(torch.ones(3)), "sparse": torch.eye(3).to_sparse(), "set": {1, 2},
                "complex": torch.randn(3, dtype=torch.complex64), "nothing": {}, "large": torch.randn(100_000 * (rank + 1))}

    def same(a, b):
        assert type(a) is type(b), (type(a), type(b))
        if isinstance(a, dict):
            assert list(a) == list(b) and a.__class__ is b.__class__
            return all(same(a[key], b[key]) for key in a)
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
            return torch.equal(a.to_dense() if a.is_sparse else a, b.to_dense() if b.is_sparse else b)
        return a == b

    if round_number == 0:
        for step in (1, 2, 3):  # the ranks' parts are not of the same size, so the first one may be without one of them
            ddprun.keep(step, per_rank=state_of(rank), replicated={"same": state_of(9)})
            meet(f"made-{step}")
        try:
            ddprun.keep(2)
        except ValueError:
            all_die()
    assert kept.step == 3
    assert same(state_of(rank), kept.per_rank) and same({"same": state_of(9)}, kept.replicated)
    its = kept.per_rank["dict"]
    assert its._metadata == {"version": 2} and its["tied"] is its["weight"]
    say(kept.step)
    for step in range(4, 7):
        ddprun.keep(step, per_rank={"huge": torch.zeros(1).expand(1 << 42)})
elif case == "again":
    def keep(step, replicated, name=""):
        ddprun.keep(step, per_rank=name, replicated=replicated)

    def keep_in_turn(step, first, name, replicated):
        """The other rank waits for the first one."""
        while rank != first and not (folder / f"kept-{name}-{first}").exists():
            time.sleep(0.005)
        keep(step, replicated, name)
        (folder / f"kept-{name}-{rank}").touch()
        meet(f"kept-{name}")

    if round_number == 0:
        keep(1, replicated_at(1))
        for step in range(2, 10):  # a layout comes back, and each time another rank is the first one that has it
            keep_in_turn(step, step % 2, step, replicated_at(step) if step % 2 else {"other": torch.ones(3)})
        for name in ("first", "second", "third"):
            keep_in_turn(10, 0, name, replicated_at(len(name)))
        if rank == 0:
            for name in ("fourth of one rank", "fifth of one rank"):
                keep(10, replicated_at(len(name)), name)
        all_die()
    assert torch.equal(kept.replicated["weight"], torch.full((5000,), 5.0)), kept.replicated
    say(f"{kept.step} {kept.per_rank}")
    for step in (11, 12):
        keep(step, {"no tensor": bytes(65 << 20)})
        meet(f"large-{step}")
elif case == "moved":
    from ddprun import keeping
    place = keeping._of_process()._place

    def kept_as(rank):
        place.rank = rank
        try:
            return ddprun.kept()
        finally:
            place.rank = 0

    if round_number == 0:
        ddprun.keep(1, replicated=replicated_at(1))
        all_die()
    elif round_number == 1:
        assert kept.step == kept_as(5).step == 1 and kept.per_rank is None
        ddprun.keep(2, per_rank="of rank 0", replicated=replicated_at(2))
        all_die()
    # Step 1 has nothing of one rank alone, and what is later is forgotten with it.
    assert kept.per_rank == "of rank 0" and kept_as(5).step == 1
    say(ddprun.kept().step)
    child = os.fork()
    if child == 0:
        ddprun.keep(3, per_rank="of a child, which is no worker")
        os._exit(3 if ddprun.kept() is None else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
'''


def environment(folder):
    control = folder / "control"
    control.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "worker_lib/python"), "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "DDPRUN_CONTROL_DIR": str(control), "GLOO_SOCKET_IFNAME": "lo"}


class Training:
    """A job of TRAINING with two ranks."""

    def __init__(self, folder, steps, every, *options):
        self.folder = folder
        folder.mkdir()
        (folder / "program.py").write_text(TRAINING)
        self.errors = open(folder / "errors", "w+b")
        self.agent = subprocess.Popen(
            [DDPRUN, "--nproc-per-node=2", "--max-restarts=1000", "--rdzv-id=job", f"--events={folder}/events", *options,
             folder / "program.py", folder, str(steps), str(every)],
            stdout=self.errors, stderr=self.errors, env=environment(folder), cwd=folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.agent.poll() is None:
            self.agent.terminate()
        self.agent.wait()
        self.errors.close()

    def said(self):
        return (self.folder / "errors").read_text(errors="replace")

    def until(self, holds, every_s=0.002):
        deadline = time.monotonic() + LIMIT_S
        while not (found := holds()):
            if time.monotonic() > deadline or self.agent.poll() is not None:
                raise AssertionError(f"it has not got on:\n{self.said()}")
            time.sleep(every_s)
        return found

    def lines(self, rank, what="steps"):
        """Whole ones."""
        path = self.folder / f"{what}-{rank}"
        return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []

    def steps(self, rank):
        return [int(line.split()[0]) for line in self.lines(rank)]

    def kept(self, rank):
        """What its workers have begun with; standbys that prepare for its place ask, too."""
        return [line for line in self.lines(rank, "kept") if "prepared" not in line]

    def workers(self):
        """Of the last step of each rank."""
        return [int(self.lines(rank)[-1].split()[1]) for rank in range(2)]

    def kill_all(self, chance):
        before = [len(self.lines(rank)) for rank in range(2)]
        self.until(lambda: all(len(self.lines(rank)) > before[rank] + EVERY + 2 for rank in range(2)))
        time.sleep(chance.uniform(0, 0.02))
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)

    def events(self, kind):
        lines = (self.folder / "events").read_text().splitlines()
        return [event for event in (json.loads(line) for line in lines if line.endswith("}")) if event["event"] == kind]

    def are_prepared(self):
        asked = subprocess.run([DDPCTL, "status", "--json", "job"], capture_output=True, env=environment(self.folder))
        status = json.loads(asked.stdout)["nodes"][0] if asked.returncode == 0 else {}
        return (status.get("replacement") or {}).get("waiting") == 2

    def wait(self):
        """The hashes of all that the ranks have at the end."""
        if self.agent.wait(LIMIT_S) != 0:
            raise AssertionError(self.said())
        return [(self.folder / f"end-{rank}").read_text() for rank in range(2)]


class Test(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)


class Killed(Test):
    STEPS = 4000 if FULL else 200

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder, \
                Training(Path(folder) / "plain", cls.STEPS, 0, "--standby=2", "--max-restarts=0") as plain:
            (plain.folder / "killed").touch()
            cls.undisturbed = plain.wait()

    def check_steps(self, training):
        for rank in range(2):
            steps = training.steps(rank)
            for before, after in zip(steps, steps[1:]):
                self.assertLessEqual(after, before + 1, "a step was left out")
                self.assertLessEqual(before + 1 - after, EVERY, f"after step {before} of rank {rank}")

    def check_begins(self, training, kills):
        """What the workers of each round have begun with."""
        kept = training.kept(0)
        self.assertEqual(kept[0], "0")
        self.assertEqual(len(kept), 1 + kills, kept)
        self.assertNotIn("0", kept[1:], "it began anew")
        self.assertEqual(kept, training.kept(1))
        self.assertNotIn("in memory", training.said())

    @unittest.skipUnless(FULL, "only with DDPRUN_TEST_FULL")
    def test_all_at_once_at_any_moment(self):
        chance = random.Random(SEED)
        for option, kills in (("--standby=auto", 40), ("--standby=off", 10)):
            with self.subTest(option, seed=SEED), Training(self.folder / option, self.STEPS, EVERY, option) as training:
                for _ in range(kills):
                    training.kill_all(chance)
                (training.folder / "killed").touch()
                self.assertEqual(training.wait(), self.undisturbed, training.said())
                self.check_steps(training)
                self.check_begins(training, kills)

    def test_a_rank_is_replaced_after_a_restart_from_memory(self):
        chance = random.Random(SEED)
        with Training(self.folder / "killed", self.STEPS, EVERY, "--standby=2") as training:
            replacements = 3 if FULL else 2
            for _ in range(replacements):
                (training.folder / "hold").unlink(missing_ok=True)
                training.kill_all(chance)
                (training.folder / "hold").touch()
                training.until(training.are_prepared, 0.05)
                (training.folder / "hold").unlink()
                os.kill(training.workers()[chance.randrange(2)], signal.SIGKILL)
                known = len(training.events("recovered"))
                training.until(lambda: len(training.events("recovered")) > known)
                self.assertEqual(training.events("recovered")[-1]["how"], "replaced", training.said())
            training.kill_all(chance)
            (training.folder / "killed").touch()
            self.assertEqual(training.wait(), self.undisturbed, training.said())
            self.check_steps(training)
            self.check_begins(training, kills=replacements + 1)
            for rank in range(2):
                # A standby is told what the worker whose place it is for was told.
                last = None
                for line in training.lines(rank, "kept"):
                    step, _, is_prepared = line.partition(" ")
                    if is_prepared:
                        self.assertEqual(step, last)
                    last = step


class Parts(unittest.TestCase):
    """A snapshot takes the layout of the one before, if it is of the same tensors."""

    def test_whatever_lay_at_the_same_place_before(self):
        import warnings
        warnings.simplefilter("ignore")  # of sparse tensors
        sys.path.insert(0, str(SOURCE / "worker_lib/python"))
        import torch
        from ddprun import keeping
        memory = torch.arange(8, dtype=torch.float32) + 1
        square, number = memory[:4].view(2, 2), memory[:2].view(torch.complex64)
        rows, other_rows = (torch.as_strided(memory, (2, 2), (step, 1)) for step in (3, 4))
        variants = {
            "plain": square, "its columns": square.t(), "negative": torch._neg_view(square), "sparse": square.to_sparse(),
            "flat": memory[:4], "whole": memory[:4].view(torch.int32), "parameter": torch.nn.Parameter(square),
            "gaps": memory[::2], "rows": rows, "other rows": other_rows, "rows twice": [rows, rows],
            "both rows": [rows, other_rows], "number": number, "conjugate": number.conj(), "imaginary": number.conj().imag,
            "gradients": square.detach().requires_grad_(), "elsewhere": square.clone(), "nothing": memory[:0],
            "on no device": memory.to("meta"), "twice": [square, square], "two": [square, memory[:4]], "no tensor": 5,
        }

        class Memory:
            def read(self, copies):
                for to, begin, size in zip(copies[0::3], copies[1::3], copies[2::3]):
                    ctypes.memmove(to, begin, size)

        def read_back(parts):
            pieces = (zip(each[0::2], each[1::2]) for each in parts.pieces(0, parts.layout.size))
            data = b"".join(ctypes.string_at(*piece) if piece[0] else bytes(piece[1]) for some in pieces for piece in some)
            held = ctypes.create_string_buffer(data, max(1, len(data)))
            return keeping._Read(bytes(parts.structure()), Memory(), ctypes.addressof(held)).state()["it"]

        def same(a, b):
            if not isinstance(a, torch.Tensor):
                return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else a == b
            is_alike = (type(a), a.dtype, a.shape, a.requires_grad, a.layout, a.device) == (
                type(b), b.dtype, b.shape, b.requires_grad, b.layout, b.device)
            return is_alike and (a.is_meta or torch.equal(a.to_dense() if a.is_sparse else a, b.to_dense() if b.is_sparse else b))

        for before, of_before in variants.items():
            layout = keeping._Parts({"it": of_before}, None).layout
            for now, value in variants.items():
                with self.subTest(before=before, now=now):
                    parts = keeping._Parts({"it": value}, layout)
                    self.assertTrue(same(read_back(parts), value))
                    self.assertEqual(keeping._Parts({"it": value}, parts.layout).layout is parts.layout, True)
                    if "twice" in now:
                        self.assertIs(*read_back(parts))


class Values(unittest.TestCase):
    """What ranks compare, and decide together."""

    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(SOURCE / "worker_lib/python"))
        from ddprun import keeping
        cls.keeping = keeping

    def test_equal_values_have_equal_sums_and_no_others_have(self):
        import numpy

        def sum_of(value):
            return self.keeping._Parts({"it": value}, None).sum_of_values(None)

        def values():
            """Anew, so that no object is the same as before."""
            word = "".join(["wo", "rd"])
            return {
                "objects": numpy.array([word, 1 << 80, None], dtype=object), "other objects": numpy.array([word, 1 << 80, 5], dtype=object),
                "numbers": numpy.zeros(2, numpy.int32), "other numbers": numpy.zeros(1, numpy.int64),
                "a row": numpy.zeros((1, 2), numpy.int32), "a number": numpy.float64(1), "a plain number": 1.0,
                "a set": {word, "a", "b", ("c", 5)}, "a set of sets": {frozenset({word, "a", "b"}), frozenset({"c"})},
                "bytes": bytes(100), "other bytes": bytes(101), "bytes in a list": [bytes(100)],
            }

        first, again = ({name: sum_of(value) for name, value in values().items()} for _ in range(2))
        self.assertEqual(first, again)
        self.assertEqual(len(set(first.values())), len(first), first)
        self.assertEqual(sum_of({8, 0, 16}), sum_of({16, 0, 8}))

    def test_nodes_go_on_from_one_call_at_a_step(self):
        keeper = self.keeping._Keeper()
        same = (2, 7)
        self.assertEqual(keeper._newest([{(5, 1): (2, 8), (5, 0): same}, {(5, 0): same, (4, 3): same}]), (5, 0))
        self.assertEqual(keeper._newest([{(5, 1): same, (5, 0): same}, {(5, 0): same, (5, 1): same}]), (5, 1))
        self.assertIsNone(keeper._newest([{(5, 1): same}, {(5, 0): same}]))

    def test_what_cannot_be_put_together_is_said_before_the_ranks_agree(self):
        class Broken:
            def state(self):
                raise RuntimeError("there is no such mesh")

        keeper = self.keeping._Keeper()
        keeper._read_own, keeper._read_shared = lambda number: None, lambda number: Broken()
        self.assertEqual(keeper._read(0), (None, None, "RuntimeError: there is no such mesh"))


class Cases(Test):
    def run_case(self, case, *options, ranks=2, code=0, **more):
        (self.folder / "program.py").write_text(CASES)
        done = subprocess.run(
            [DDPRUN, f"--nproc-per-node={ranks}", *options, self.folder / "program.py", self.folder, case],
            capture_output=True, text=True, timeout=LIMIT_S, cwd=self.folder, env={**environment(self.folder), **more})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def said(self):
        return [(self.folder / f"said-{rank}").read_text() for rank in range(2)]

    # Each worker imports PyTorch, so a job has more than one case.
    def test_a_damaged_one_falls_to_the_other_and_ranks_share_the_same_or_nothing(self):
        err = self.run_case("damaged", "--max-restarts=2", "--standby=auto")
        self.assertEqual(self.said(), ["5\n5\n", "5\n5\n"])
        of_heads, _, of_data = err.partition("restart 2 of 2")
        self.assertNotIn("step 10 in memory is damaged", of_heads)
        self.assertIn("step 10 in memory is damaged", of_data)
        self.assertIn("do not have the same tensors in what is equal on all ranks", err)

    def test_all_kinds_of_state_come_back_and_too_little_memory_is_one_sentence(self):
        err = self.run_case("kinds", "--max-restarts=1", "--standby=auto")
        self.assertEqual(self.said(), ["3", "3"])
        self.assertEqual(err.count("no snapshots in memory"), 1, err)
        self.assertRegex(err, r"no snapshots in memory from here on: two snapshots take \d+ MiB")

    def test_the_last_call_at_a_step_counts_layouts_come_back_and_a_large_rest_is_one_sentence(self):
        err = self.run_case("again", "--max-restarts=1", "--standby=auto")
        self.assertEqual(self.said(), ["10 third"] * 2)
        self.assertEqual(err.count("no snapshots in memory"), 1, err)
        self.assertIn("ddprun: no snapshots in memory from here on: what is no plain tensor takes more than the 64 MiB that a "
                      "snapshot has room for", err)

    def test_own_parts_belong_to_their_ranks_and_a_forked_child_has_none(self):
        self.run_case("moved", "--max-restarts=2", "--standby=auto", ranks=1)
        self.assertEqual((self.folder / "said-0").read_text(), "1")

    def test_without_ddprun_it_does_nothing(self):
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost",
                 "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}  # as torchrun sets them
        (self.folder / "program.py").write_text(CASES)
        for more in ({}, place):
            done = subprocess.run([sys.executable, self.folder / "program.py", self.folder, "nothing"], capture_output=True,
                                  text=True, env={**environment(self.folder), **more})
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_without_hooks_or_restarts_it_does_nothing(self):
        self.assertNotIn("memory", self.run_case("no hooks", "--max-restarts=1", DDPRUN_PYTHON_HOOKS="0"))
        self.assertNotIn("memory", self.run_case("no hooks", "--max-restarts=0"))


if __name__ == "__main__":
    print(f"DDPRUN_TEST_SEED={SEED}", flush=True)
    unittest.main(verbosity=2)
