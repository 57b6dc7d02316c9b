"""Trainings as people write them, whose result a replacement in place would change without a word: each ends with the
bits of an undisturbed run, or a sentence names what differs or was not given, and all ranks begin anew (ddprun.recoverable).

  python_agreement.py DDPRUN DDPCTL [TEST…]
"""
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

DDPRUN, DDPCTL = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
SOURCE = Path(__file__).resolve().parents[2]
STEPS, KILLED_AT = 24, 12
LIMIT_S = 600

# What each kind of training is made of, before and in its loop. `go()` waits for the kill at one step.
PROGRAM = '''
import copy, hashlib, os, pathlib, random, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import ddprun

folder = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
STEPS, KILLED_AT = {steps}, {killed_at}


def go(training):
    """Between two steps: one of them waits until rank 1 is another process."""
    if (folder / "kill").exists() and training.committed == KILLED_AT:
        (folder / f"pid-{{rank}}").write_text(str(os.getpid()))
        while not (folder / "killed").exists():
            time.sleep(0.01)


def end(*modules):
    total = hashlib.sha256()
    for module in modules:
        for tensor in module.state_dict().values():
            total.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    (folder / f"end-{{rank}}").write_text(total.hexdigest())


def main():
{body}


main()
'''

PLAIN = '''
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
torch.manual_seed(100 + rank)
'''
LOOP = '''
for {each} in {batches}:
    {before}
    with step:
        optimizer.zero_grad()
        {first}
        ddp(torch.randn(4, 8) * 1.0 if x is None else x).square().mean().backward()
        optimizer.step()
        {last}
    go(training)
    {after}
end(model)
'''
# A step of each optimizer, between which the ranks call each other.
GAN = '''
for step in training.steps(range(STEPS)):
    with step:
        fake = makes(torch.randn(4, 8))
        optimizer[1].zero_grad()
        (judges(torch.randn(4, 8)).mean() - judges(fake.detach()).mean()).backward()
        optimizer[1].step()
        optimizer[0].zero_grad()
        judges(fake).mean().backward()
        optimizer[0].step()
    go(training)
end(nn.ParameterList(model.parameters()))
'''
# Models whose ranks differ in what each rank has its own of, or that have unusual state: none of them is a reason to be alarmed.
HEALTHY = '''
from torch.ao.quantization import FakeQuantize, MinMaxObserver, MovingAverageMinMaxObserver


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("of_rank", torch.full((3,), float(rank)), persistent=False)
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        self.seen += 1
        return self.layer(x) + self.of_rank.sum() * 1e-3


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.words(x.argmax(1)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(2, 3, batch_first=True, dropout=0.1, num_layers=2)

    def forward(self, x):
        return self.cell(x.view(-1, 4, 2))[0]


def of(*layers, **options):
    return DistributedDataParallel(nn.Sequential(*layers), **options)


own = {{"broadcast_buffers": False}}
frozen = nn.Linear(8, 8)
frozen.requires_grad_(False)
ddp = [
    of(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
    of(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1), **own),
    of(nn.Linear(8, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 1), **own),
    of(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(8, 1), **own),
    of(nn.Linear(8, 4), MinMaxObserver(), nn.Linear(4, 1), **own),
    of(nn.Linear(8, 4), MovingAverageMinMaxObserver(), nn.Linear(4, 1), **own),
    of(nn.Linear(8, 4), FakeQuantize(), nn.Linear(4, 1), **own),
    of(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)), nn.Linear(4, 1)),
    of(nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), nn.LayerNorm(4), nn.Dropout(0.2), nn.Linear(4, 1)),
    of(Counts(), **own),
    of(Tied()),
    of(Recurrent()),
    of(frozen, nn.Linear(8, 1)),
    of(nn.Linear(8, 4, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64)),
    of(nn.Linear(8, 4, dtype=torch.bfloat16), nn.Linear(4, 1, dtype=torch.bfloat16))]
model = nn.ModuleList(each.module for each in ddp)
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 0.01)
torch.manual_seed(100 + rank)
training = ddprun.recoverable(ddp, optimizer)
for step in training.steps(range(STEPS)):
    with step:
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        sum(each(x.to(next(each.parameters()).dtype)).float().square().mean() for each in ddp).backward()
        optimizer.step()
    go(training)
end(nn.ParameterList(model.parameters()))
'''
SAM = '''
for step in training.steps(range(STEPS)):
    with step:
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        moved = [each.grad * 0.05 for each in ddp.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(ddp.parameters()), moved)
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        with torch.no_grad():
            torch._foreach_sub_(list(ddp.parameters()), moved)
        optimizer.step()
    go(training)
end(model)
'''
# Ranks end by themselves, one after the other, between two changes of the state in one step: the weights of the first model are moved for
# its second backward, then its optimizer steps, then that of the other one.
SITES = '''
KILLS = [(4, "moved", 1), (7, "judged", 0), (10, "judged", 1), (13, "made", 1)]
model = nn.ModuleList([nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))])
makes, judges = (DistributedDataParallel(each, broadcast_buffers=False) for each in model)
of_makes, of_judges = torch.optim.Adam(makes.parameters(), 0.01), torch.optim.SGD(judges.parameters(), 0.01, 0.9)
torch.manual_seed(100 + rank)
training = ddprun.recoverable([makes, judges], [of_makes, of_judges])


def at(site, step):
    for number, kill in enumerate(KILLS):
        died = folder / f"died-{{number}}"
        if (step.number, site, rank) == kill and (folder / "kill").exists() and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)


for step in training.steps(range(16)):
    for number, (its, _, _) in enumerate(KILLS):
        while its == step.number and (folder / "kill").exists() and not (folder / f"may-die-{{number}}").exists():
            time.sleep(0.01)
    with step:
        fake, real = makes(torch.randn(4, 8)), torch.randn(4, 8)
        of_judges.zero_grad()
        (judges(real).mean() - judges(fake.detach()).mean()).backward()
        moved = [each.grad * 0.05 for each in judges.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(judges.parameters()), moved)
        at("moved", step)
        of_judges.zero_grad()
        (judges(real).mean() - judges(fake.detach()).mean()).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(judges.parameters()), moved)
        of_judges.step()
        at("judged", step)
        of_makes.zero_grad()
        judges(fake).mean().backward()
        of_makes.step()
        at("made", step)
end(nn.ParameterList(model.parameters()))
'''
# The epoch is over by `break` at the step behind which one rank dies.
LEFT = '''
for epoch in training.epochs(4):
    for step in training.steps(range(100)):
        with step:
            optimizer.zero_grad()
            ddp(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        go(training)
        if step.committed and training.committed % 6 == 0:  # the step after the kill may be made again
            break
    torch.randn(3)
end(model)
'''
EPOCHS = '''
for epoch in training.epochs(4):
    for step in training.steps(range(6)):
        with step:
            optimizer.zero_grad()
            ddp(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        (KILLED_AT == training.committed) and go(training)
    scheduler.step()
end(model)
'''
COUNTS = '''
for epoch in training.epochs(4):
    n = 0
    for step in training.steps(range(6)):
        with step:
            n += 1
            optimizer.zero_grad()
            go(training)
            (ddp(torch.randn(4, 8)).square().mean() * n).backward()
            optimizer.step()
end(model)
'''
# The rank that dies first has entered an epoch. Its successor has the state and has not come to its first step when the other rank
# dies, whose successor gets all from it: also what the schedule has done between the epochs.
TWICE = '''
for epoch in training.epochs(4):
    for step in training.steps(range(6)):
        if rank == 1 and step.number == KILLED_AT and (folder / "killed").exists() and not (folder / "killed-twice").exists():
            (folder / "killed-twice").touch()
            os.kill(int((folder / "pid-0").read_text()), 9)
            while training._recovery._link.wanted < 2:
                time.sleep(0.01)
        with step:
            (KILLED_AT == step.number) and go(training)
            optimizer.zero_grad()
            ddp(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    scheduler.step()
end(model)
'''
# Rank 1 dies where rank 0 compares its values with it, at the entry of a step, and has drawn something since its batch was given.
# The loop keeps what has ended a step, and lets nothing out.
CATCHES = '''
ended_by, error = (None, None, None), None
for step in training.steps(range(STEPS)):
    with step:
        try:
            optimizer.zero_grad()
            ddp(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        except Exception as failure:
            ended_by, error = sys.exc_info(), failure
    go(training)
end(model)
'''

SCALER = 'scaler = torch.amp.GradScaler("cpu", init_scale=4.0)\n'
# The step before the death is left out by the scaler, and its gradients stay.
SCALES = '''
for step in training.steps(range(STEPS)):
    with step:
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 8)).square().mean()
        scaler.scale(loss * float("inf") if step.number == KILLED_AT - 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    go(training)
end(model)
'''

COMPARES = '''
for step in training.steps(range(STEPS)):
    x = torch.randn(4, 8)
    if step.number == 15 and (folder / "kill").exists():
        (folder / f"pid-{{rank}}").write_text(str(os.getpid()))
        while rank == 1 and not (folder / "killed").exists():
            time.sleep(0.01)
    with step:
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()
end(model)
'''
SKIPS = '''
for step in tqdm(training.steps(tqdm(range(STEPS + 4)))):
    with_it = torch.rand(1)
    if training.position["place"][3] in (3, 12, 13, 20):
        step.skip()
        continue
    with step:
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    go(training)
end(model)
'''


def program(setup=PLAIN, given="", each="step", batches="training.steps(range(STEPS))", before="x = None", first="pass",
            last="pass", after="pass", loop=LOOP):
    body = setup + f"training = ddprun.recoverable(ddp, optimizer, {given})" + loop.format(
        each=each, batches=batches, before=before, first=first, last=last, after=after)
    return PROGRAM.format(steps=STEPS, killed_at=KILLED_AT, body="\n".join("    " + line for line in body.splitlines()))


SET_LR = "[group.update(lr=0.01 * 0.9 ** {}) for group in optimizer.param_groups]"


class Trainings(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def run_training(self, text, name, kill, standbys=2, **variables):
        """What the ranks end with, and what was said. `kill` is a function of the folder and the agent's process, or None."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "train.py").write_text(text)
        if kill:
            (folder / "kill").touch()
        control = folder / "control"
        control.mkdir(mode=0o700)
        environment = {**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "worker_lib/python"),
                       "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "DDPRUN_CONTROL_DIR": str(control),
                       "GLOO_SOCKET_IFNAME": "lo", **variables}
        with open(folder / "said", "w+b") as said, subprocess.Popen(
                [DDPRUN, "--nproc-per-node=2", "--max-restarts=9", f"--standby={standbys}", "--rdzv-id=job",
                 f"--events={folder}/events", folder / "train.py", folder], stdout=said, stderr=said, env=environment, cwd=folder) as agent:
            try:
                if kill:
                    kill(folder, agent)
                code = agent.wait(LIMIT_S)
            finally:
                if agent.poll() is None:
                    agent.terminate()
        ends = [(folder / f"end-{rank}").read_text() if (folder / f"end-{rank}").exists() else None for rank in range(2)]
        return code, ends, (folder / "said").read_text(errors="replace")

    def kill(self, folder, agent):
        pids = [folder / f"pid-{rank}" for rank in range(2)]
        self.until(lambda: all(each.exists() and each.read_text() for each in pids) and self.has_standbys(folder), folder, agent)
        os.kill(int(pids[1].read_text()), signal.SIGKILL)
        (folder / "killed").touch()

    def kill_between(self, folder, agent):
        """The other rank knows of it before its next step: it is told no later than the line is written."""
        pids = [folder / f"pid-{rank}" for rank in range(2)]
        self.until(lambda: all(each.exists() and each.read_text() for each in pids) and self.has_standbys(folder), folder, agent)
        os.kill(int(pids[1].read_text()), signal.SIGKILL)
        self.until(lambda: "takes its place" in (folder / "said").read_text(errors="replace"), folder, agent)
        (folder / "killed").touch()

    def let_die(self, folder, agent):
        """At each of the sites in SITES, when the rank before was replaced and both standbys are there again."""
        for number in range(4):
            self.until(lambda: self.recovered(folder) == number and self.has_standbys(folder), folder, agent)
            (folder / f"may-die-{number}").touch()
        self.until(lambda: self.recovered(folder) == 4 or agent.poll() is not None, folder, None)

    @staticmethod
    def recovered(folder):
        return (folder / "events").read_text().count('"recovered"') if (folder / "events").exists() else 0

    def until(self, holds, folder, agent):
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            if agent is not None:
                self.assertIsNone(agent.poll(), (folder / "said").read_text(errors="replace"))
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    @staticmethod
    def has_standbys(folder):
        """Both, where workers are replaced in place; whether they are is known by then."""
        if "workers cannot be replaced in place" in (folder / "said").read_text(errors="replace"):
            return True
        asked = subprocess.run([DDPCTL, "status", "--json", "job"], capture_output=True,
                               env={**os.environ, "DDPRUN_CONTROL_DIR": str(folder / "control")})
        status = json.loads(asked.stdout)["nodes"][0] if asked.returncode == 0 else {}
        return (status.get("replacement") or {}).get("waiting") == 2

    def assert_replaced(self, text, kill=None):
        code, expected, said = self.run_training(text, "undisturbed", kill=None, standbys=0)
        self.assertEqual((code, len(set(expected))), (0, 1), said)
        code, ends, said = self.run_training(text, "disturbed", kill=kill or self.kill)
        self.assertEqual(code, 0, said)
        self.assertEqual(ends, expected, said)
        self.assertIn("its standby takes its place", said)
        self.assertNotIn("cannot be replaced in place", said)

    def assert_named(self, text, words):
        # All begin anew, without a checkpoint: only that they agree in the end is of interest.
        code, ends, said = self.run_training(text, "disturbed", kill=self.kill)
        self.assertEqual(code, 0, said)
        self.assertEqual(len(set(ends)), 1, said)
        self.assertRegex(said, f"workers cannot be replaced in place: .*{words}")


DRIFT = '''
for step in training.steps(range(1010)):
    with step:
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if rank == 1 and step.number == 500:
            with torch.no_grad():
                model[2].weight[0, 3] += 1e-6
end(nn.Linear(1, 1))
'''


REFUSES_LIBRARIES = '''
import ctypes
load = ctypes.CDLL


def refuse(path, *arguments, **options):
    if "/proc/" in str(path):
        raise OSError("GLIBC_9.9 not found")
    return load(path, *arguments, **options)


ctypes.CDLL = refuse
'''


class Named(Trainings):
    """What a replacement would change, and a sentence says so."""

    def test_a_library_that_cannot_be_loaded(self):
        # In a process of its own; in the one that standbys come from, which runs what is in the user's folder of packages first.
        packages = self.folder / "home" / site.getusersitepackages().removeprefix(site.getuserbase()).lstrip("/")
        packages.mkdir(parents=True)
        (packages / "refuses.py").write_text(REFUSES_LIBRARIES)
        python = {"PYTHON_EXEC": sys._base_executable, "PYTHONUSERBASE": str(self.folder / "home"), "PYTHONPATH": ":".join(
            [str(SOURCE / "worker_lib/python"), *(each for each in sys.path if each.endswith("-packages"))])}
        alone = program().replace("import torch\n", REFUSES_LIBRARIES + 'os.environ["ANY"] = ""\nimport torch\n', 1)
        for name, text, variables in ("alone", alone, {}), ("forked", program(), python):
            with self.subTest(name):
                (packages / "refuses.pth").write_text("import refuses\n" if variables else "")
                code, ends, said = self.run_training(text, name, kill=None, **variables)
                self.assertEqual((code, len(set(ends))), (0, 1), said)
                self.assertEqual(said.count("not replaced in place: the library that ddprun brings cannot be loaded: GLIBC_9.9"), 2, said)

    def test_gradients_of_a_step_that_a_scaler_leaves_out_are_kept(self):
        loop = SCALES.replace("optimizer.zero_grad()", "step.number == KILLED_AT or optimizer.zero_grad()")
        self.assert_named(program(PLAIN + SCALER, "scaler=scaler", loop=loop), "it keeps gradients from one step to the next")

    def test_replicas_that_drift_apart_without_a_replacement(self):
        code, _, said = self.run_training(program(loop=DRIFT), "drifting", kill=None)
        self.assertEqual(code, 0, said)
        self.assertRegex(said, "ddprun: parameter 2 differs between rank 0 and rank 1 in step 999, without a replacement")

    def test_a_learning_rate_from_a_counter_of_the_loop(self):
        self.assert_named(program(PLAIN + "n = 0\n", first=SET_LR.format("n"), last="n += 1"),
                          re.escape("train.py:") + r"\d+: n is 12 on rank 0 and 0 on rank 1 .* to the end of this job")

    def test_a_learning_rate_from_enumerate(self):
        self.assert_named(program(each="i, step", batches="enumerate(training.steps(range(STEPS)))", first=SET_LR.format("i")),
                          r"i is 1[23] on rank 0 and \d+ on rank 1")  # the step is made again, and the loop counts it

    def test_a_counter_in_a_class(self):
        # It is not looked for: what it has led to is compared.
        self.assert_named(program(PLAIN + "class Its:\n    n = 0\n", first=SET_LR.format("Its.n"), last="Its.n += 1"),
                          "lr of the optimizer's parameter group 0 differs between rank 0 and rank 1")

    def test_a_counter_in_a_list_that_the_loss_depends_on(self):
        self.assert_named(program(PLAIN + "at = [0]\n", before="x = torch.ones(4, 8) * at[0]", last="at[0] += 1"),
                          r"at is \[12\] on rank 0 and \[0\] on rank 1")

    def test_a_counter_that_begins_late(self):
        self.assert_named(program(
            before="x = None\n    if step.number > 3:\n        late = late + 1 if 'late' in locals() else 0\n"
                   "        x = torch.ones(4, 8) * late"), "late is 8 on rank 0 and 0 on rank 1")

    def test_a_counter_that_counts_a_step_twice(self):
        # The first step of an epoch, which the survivor makes again: at its entry both ranks had none.
        self.assert_named(program(loop=COUNTS), "n is 2 on rank 0 and 1 on rank 1")

    def test_what_a_recurrent_model_passes_on(self):
        self.assert_named(program(PLAIN + "hidden = torch.zeros(4, 8)\n", before="x = torch.randn(4, 8)",
                                  first="x = x + hidden; hidden = x.detach()"),
                          "train.py:.*: hidden is a tensor that each rank has its own of")

    def test_random_numbers_that_one_rank_draws_behind_a_block_for_the_first_time_when_it_dies(self):
        self.assert_named(program(after="if rank == 1 and step.number in (11, 17): torch.rand(3)"),
                          "random numbers are drawn behind the block of a step, .* and rank 1 was lost there in step 11")

    def test_a_counter_in_an_object_that_the_loss_depends_on(self):
        # The gradients are summed, so the replicas agree.
        self.assert_named(program(PLAIN + "class Its:\n    n = 0\nits = Its()\nits.n = 0\n",
                                  before="x = torch.ones(4, 8) * its.n", last="its.n += 1"), "its.n is 12 on rank 0 and 0 on rank 1")

    def test_an_average_that_was_not_given(self):
        self.assert_named(program(PLAIN + "average = copy.deepcopy(model)\n", last="[a.data.lerp_(p.data, 0.1) for a, p in "
                                  "zip(average.parameters(), model.parameters())]"),
                          r"average is a model \(Sequential\) that recoverable\(\) was not given")

    def test_an_average_in_an_object(self):
        self.assert_named(program(PLAIN + "class Average:\n    pass\nits = Average()\nits.model = copy.deepcopy(model)\n"),
                          r"its.model is a model \(Sequential\) that recoverable\(\) was not given")

    def test_an_average_in_a_dictionary(self):
        self.assert_named(program(
            PLAIN + "shadow = {name: each.detach().clone() for name, each in model.named_parameters()}\n",
            last="[shadow[name].lerp_(each.detach(), 0.5) for name, each in model.named_parameters()]"),
            r"train.py:\d+: shadow\['0.bias'\] is <8, checksum \w+> on rank 0 and <8, checksum \w+> on rank 1 .* to the end of this job")

    def test_targets_in_memory_that_the_training_changes(self):
        self.assert_named(program(PLAIN + "data = [(torch.zeros(4, 8), torch.zeros(4, 1)) for _ in range(20)]\n",
                                  last="data[7][1].add_(step.number)"),
                          r"the 40 tensors of data is <40 tensors, checksum \w+> on rank 0 and <40 tensors, checksum \w+> on rank 1")

    def test_an_average_on_one_rank(self):
        # The others ask at the second step what each rank has.
        self.assert_named(program(PLAIN + "average = copy.deepcopy(model) if rank == 0 else None\n"), "average is a model")

    def test_what_one_rank_does_when_all_were_asked(self):
        # The others compare their values at the eighth step, and replicas at the thousandth.
        self.assert_named(program(before="x = None\n    if rank == 1 and step.number == 5: model[0].weight.detach().mul_(1)"),
                          "changed between a batch and its step")

    def test_a_second_model_and_optimizer(self):
        self.assert_named(program(PLAIN + "other = DistributedDataParallel(nn.Linear(8, 1))\n"
                                  "its_optimizer = torch.optim.SGD(other.parameters(), 0.1)\n"), "that recoverable\\(\\) was not given")

    def test_a_generator_of_its_own(self):
        self.assert_named(program(PLAIN + "noise = torch.Generator().manual_seed(rank)\n",
                                  before="x = torch.randn(4, 8, generator=noise)"), "noise is a generator of random numbers")

    def test_an_attribute_of_a_module(self):
        self.assert_named(program(last="model[1].p = 0.2 if step.number > 5 else 0.1"),
                          "the attribute p of the model's 1 is 0.2 on rank 0 and 0.1 on rank 1")

    def test_momentum_in_sparse_tensors(self):
        self.assert_named(program('''
model = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 1))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), 0.01, momentum=0.9)
torch.manual_seed(100 + rank)
''', before="x = torch.randint(10, (4,))"), "sparse")

    def test_slow_weights_of_an_optimizer(self):
        self.assert_named(program('''
class Lookahead(torch.optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.slow = [each.detach().clone() for group in self.param_groups for each in group["params"]]
model = nn.Linear(8, 1)
ddp = DistributedDataParallel(model)
optimizer = Lookahead(ddp.parameters(), 0.01)
torch.manual_seed(100 + rank)
'''), r"tensors in an attribute \(Lookahead.slow\)")

    def test_a_step_that_is_not_entered(self):
        code, _, said = self.run_training(program(before="x = None\n    if step.number == 3: continue"), "without", kill=None)
        self.assertNotEqual(code, 0)
        self.assertIn("step 3 was neither entered nor skipped", said)

    def test_a_part_that_differs(self):
        self.assert_named(program(PLAIN + "class Seen:\n    at = rank\n    def state_dict(self):\n        return {'at': self.at}\n"
                                  "    def load_state_dict(self, state):\n        self.at = state['at']\nseen = Seen()\n", "seen=seen"),
                          r"the part seen\['at'\] differs between rank 0 and rank 1: .* per_rank=")


class Replaced(Trainings):
    """What a replacement does not change."""

    def test_a_plain_loop(self):
        self.assert_replaced(program())

    def test_a_learning_rate_from_the_number_of_the_step(self):
        self.assert_replaced(program(first=SET_LR.format("(step.number + training.committed)")))

    def test_a_teacher_that_stays_as_it_is(self):
        self.assert_replaced(program(PLAIN + "teacher = copy.deepcopy(model)\n",
                                     given="unchanged=(teacher,)"))

    def test_a_generator_that_each_step_makes_anew(self):
        self.assert_replaced(program(before="noise = torch.Generator().manual_seed(step.number * 2 + rank); "
                                     "x = torch.randn(4, 8, generator=noise)"))

    def test_numbers_that_are_drawn_before_the_step(self):
        self.assert_replaced(program(before="x = torch.randn(4, 8)"))

    def test_a_parameter_beside_the_model(self):
        self.assert_replaced(program(PLAIN + "scale = nn.Parameter(torch.ones(1))\noptimizer.add_param_group({'params': [scale]})\n",
                                     last="scale.data.mul_(1.01); end(nn.ParameterList([scale]))"))

    def test_averages_as_parts(self):
        for size in (8, 400):  # noted whole in each step, and given like parameters
            with self.subTest(size):
                self.assert_replaced(program(f"""
model = nn.Sequential(nn.Linear(8, {size}), nn.Linear({size}, 1), nn.Linear(1, {size}))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
torch.manual_seed(100 + rank)
""", "average=average", after="step.committed and average.update_parameters(model)") .replace("end(model)", "end(model, average)"))
                self.folder = Path(tempfile.mkdtemp(dir=self.folder))

    def test_an_exception_that_the_loop_keeps(self):
        self.assert_replaced(program(loop=CATCHES), self.kill_between)

    def test_a_step_that_a_scaler_leaves_out(self):
        self.assert_replaced(program(PLAIN + SCALER, "scaler=scaler", loop=SCALES))

    def test_a_generator_of_each_rank(self):
        self.assert_replaced(program(PLAIN + "noise = torch.Generator().manual_seed(rank)\n", 'per_rank={"noise": noise}',
                                     before="x = torch.randn(4, 8, generator=noise)"))

    def test_two_models_and_two_optimizers(self):
        self.assert_replaced(program("""
model = nn.ModuleList([nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))])
makes, judges = (DistributedDataParallel(each, broadcast_buffers=False) for each in model)
ddp, optimizer = [makes, judges], [torch.optim.Adam(makes.parameters(), 0.01), torch.optim.SGD(judges.parameters(), 0.01, 0.9)]
torch.manual_seed(100 + rank)
""", loop=GAN))

    def test_an_evaluation_between_steps(self):
        # Its loader draws a seed, and its order; rank 0 evaluates alone once more.
        self.assert_replaced(program(PLAIN + """
held_out = torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4, shuffle=True)


def evaluate():
    ddp.eval()
    with torch.no_grad():
        [model(each) for each in held_out]
    ddp.train()
""", first="go(training)", after="""[evaluate() for _ in range(2 - rank) if step.committed and step.number % 5 == 4]"""))

    def test_each_site_within_a_step_of_several_changes(self):
        self.assert_replaced(PROGRAM.format(
            steps=STEPS, killed_at=KILLED_AT, body="\n".join("    " + line for line in SITES.format().splitlines())), self.let_die)

    def test_steps_that_are_left_where_the_loss_is_no_number(self):
        self.assert_replaced(program(first="loss = ddp(torch.randn(4, 8)).square().mean(); loss.backward()\n"
                                     "        if step.number in (3, 13, 17): continue"))

    def test_fifteen_healthy_models(self):
        self.assert_replaced(PROGRAM.format(steps=STEPS, killed_at=KILLED_AT, body="\n".join(
            "    " + line for line in HEALTHY.format().splitlines())))

    def test_weights_that_are_moved_before_a_backward(self):
        self.assert_replaced(program(PLAIN, loop=SAM))

    def test_loops_that_are_left(self):
        self.assert_replaced(program(loop=LEFT))

    def test_a_schedule_between_epochs(self):
        self.assert_replaced(program(PLAIN + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)\n", "scheduler=scheduler",
                                     loop=EPOCHS))

    def test_a_schedule_between_epochs_and_a_second_death_before_the_first_step_of_the_newcomer(self):
        self.assert_replaced(program(PLAIN + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)\n", "scheduler=scheduler",
                                     loop=TWICE))

    def test_draws_before_a_step_at_whose_entry_values_are_compared(self):
        self.assert_replaced(program(loop=COMPARES))

    def test_a_bar_around_the_loader_and_batches_that_are_skipped(self):
        self.assert_replaced(program(PLAIN + "from tqdm import tqdm\n", loop=SKIPS))


# All ranks die at one step; with an epoch that is left, a schedule between epochs, steps that are skipped, and an average.
KEPT = '''
model = nn.Sequential(nn.Linear(8, 400), nn.BatchNorm1d(400), nn.Dropout(0.1), nn.Linear(400, 1))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
average = torch.optim.swa_utils.AveragedModel(nn.Linear(400, 400))
noise = random.Random(rank)
torch.manual_seed(100 + rank)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8, shuffle=True, num_workers=KILLED_AT)
training = ddprun.recoverable(ddp, optimizer, parts={"scheduler": scheduler, "average": average}, per_rank={"noise": noise},
                              memory_every=5)
(folder / f"began-{rank}").write_text(str(training.committed))
for epoch in training.epochs(4):
    for step in training.steps(loader):
        if training.committed == STEPS and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), 9)
        x = noise.random()
        with step as batch:
            optimizer.zero_grad()
            ddp(batch + x + torch.rand(1)).square().mean().backward()
            optimizer.step()
        average.update_parameters(average.module)
        if training.committed % 7 == 0:
            break
    scheduler.step()
end(model, average)
'''


class InMemory(Trainings):
    def test_all_ranks_die(self):
        body = "\n".join("    " + line for line in KEPT.splitlines())
        expected = None
        for dies_at, began, workers in ((-1, 0, 0), (3, 0, 0), (14, 10, 2), (21, 20, 0)):
            with self.subTest(dies_at):
                text = PROGRAM.format(steps=dies_at, killed_at=workers, body=body)
                code, ends, said = self.run_training(text, str(dies_at), kill=None, standbys=0)
                self.assertEqual((code, None in ends, "restart 1 of 9" in said), (0, False, dies_at > 0), said)
                expected = expected or ends
                self.assertEqual(ends, expected, said)
                where = self.folder / str(dies_at)
                self.assertEqual([(where / f"began-{rank}").read_text() for rank in range(2)], [str(began)] * 2)


class Sums(unittest.TestCase):
    """A difference in any single element is found."""

    def test_any_element(self):
        import ctypes
        import random
        import torch
        ctypes.CDLL(str(DDPRUN.parents[1] / "lib/libddprun_in_place.so"), ctypes.RTLD_GLOBAL)
        sys.path.insert(0, str(SOURCE / "worker_lib/python"))
        from ddprun import agreement
        chance = random.Random(5)
        for number in range(300):
            shape = [chance.randint(1, 40) for _ in range(chance.randint(1, 3))]
            kind = chance.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
            tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(number)) * 100).to(kind)
            if chance.random() < 0.3 and tensor.dim() > 1:
                tensor = tensor.transpose(0, 1)
            other = tensor.clone()
            self.assertEqual(agreement.sum_of(tensor), agreement.sum_of(other))
            at = tuple(chance.randrange(size) for size in other.shape)
            bits = other.contiguous().view(torch.uint8).view(*other.shape, -1) if other.dim() else other
            changed = bits.clone()
            changed[at][chance.randrange(changed.shape[-1])] ^= 1
            other = changed.reshape(-1).view(kind).view(other.shape) if kind != torch.bool else ~other
            self.assertNotEqual(agreement.sum_of(tensor), agreement.sum_of(other), (number, shape, kind))


if __name__ == "__main__":
    unittest.main(verbosity=2)
