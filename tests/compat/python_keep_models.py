"""ddprun.keep() and ddprun.kept() with models as users have them: what is kept is what each rank had, and what cannot be told to be
equal on all ranks is refused with a sentence.

  python_keep_models.py DDPRUN [TEST…]

- Restored: DDP with BatchNorm, FSDP2 (by keep() and by recoverable()), HSDP, ZeroRedundancyOptimizer, AMP, two models with two optimizers, on 1, 2 and 3 ranks and on two
  nodes. All ranks are killed, and end with the bits of a run that nothing has disturbed.
- Refused: wrong calls, and values that differ between ranks. Wrong calls raise the same in one process without ddprun.
- Drifted: ranks that differ later.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(__file__).resolve().parents[2]
LIMIT_S = 300

# How both programs begin.
BEGINS = '''
import hashlib, json, os, pathlib, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import ddprun

folder, dies = pathlib.Path(sys.argv[1]), sys.argv[2] == "dies"
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
round_number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(7)
'''

MODELS = BEGINS + '''
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8))


batch_norm, amp, with_zero, generator, discriminator = models = [DistributedDataParallel(net()) for _ in range(5)]
sharded, average = net(), AveragedModel(amp.module)
fully_shard(sharded, mesh=init_device_mesh("cpu", (world_size,)))
of_batch_norm, of_amp = torch.optim.SGD(batch_norm.parameters(), 0.1, momentum=0.9), torch.optim.AdamW(amp.parameters())
of_generator, of_discriminator = torch.optim.Adam(generator.parameters()), torch.optim.RMSprop(discriminator.parameters())
of_sharded, zero = torch.optim.AdamW(sharded.parameters()), ZeroRedundancyOptimizer(with_zero.parameters(), torch.optim.AdamW, lr=0.1)
optimizers = [of_batch_norm, of_amp, of_generator, of_discriminator, of_sharded, zero]
schedulers = [StepLR(of_batch_norm, 3, 0.5), StepLR(zero, 3, 0.5)]
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

# DDP lays its buckets out anew after the first backward pass, and sums over three ranks depend on the layout.
for model in models:
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
    model.zero_grad()

torch.manual_seed(100 + rank)
kept = ddprun.kept()
if kept:
    batch_norm.load_state_dict(kept.model["batch norm"])
    amp.load_state_dict(kept.model["amp"])
    average.load_state_dict(kept.model["average"])
    with_zero.load_state_dict(kept.model["zero"])
    generator.load_state_dict(kept.model["gan"][0])
    discriminator.load_state_dict(kept.model["gan"][1])
    of_batch_norm.load_state_dict(kept.optimizer["batch norm"])
    of_amp.load_state_dict(kept.optimizer["amp"])
    of_generator.load_state_dict(kept.optimizer["gan"][0])
    of_discriminator.load_state_dict(kept.optimizer["gan"][1])
    for scheduler, state in zip(schedulers, kept.replicated["schedulers"]):
        scheduler.load_state_dict(state)
    scaler.load_state_dict(kept.replicated["scaler"])
    sharded.load_state_dict(kept.per_rank["sharded"])
    of_sharded.load_state_dict(kept.per_rank["of sharded"])
    zero.optim.load_state_dict(kept.per_rank["zero"])
    for group, its in zip(zero.param_groups, zero.optim.param_groups):
        group["lr"] = its["lr"]
    torch.set_rng_state(kept.per_rank["generator"])
(folder / f"kept-{rank}-{round_number}").write_text(str(kept and kept.step))

for step in range(kept.step + 1 if kept else 1, 12):
    for optimizer in optimizers:
        optimizer.zero_grad()
    for model, optimizer in ((batch_norm, of_batch_norm), (sharded, of_sharded), (with_zero, zero)):
        model(torch.randn(16, 8)).pow(2).mean().backward()
        optimizer.step()
    for scheduler in schedulers:
        scheduler.step()
    with torch.autocast("cpu", torch.bfloat16):
        loss = amp(torch.randn(16, 8)).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(of_amp)
    scaler.update()
    average.update_parameters(amp.module)
    discriminator(generator(torch.randn(16, 8)).detach()).mean().backward()
    of_discriminator.step()
    discriminator(generator(torch.randn(16, 8))).pow(2).mean().backward()
    of_generator.step()
    if step % 4 == 0:
        ddprun.keep(step,
                    model={"batch norm": batch_norm, "amp": amp, "average": average, "zero": with_zero, "gan": [generator, discriminator]},
                    optimizer={"batch norm": of_batch_norm, "amp": of_amp, "gan": (of_generator, of_discriminator)},
                    replicated={"schedulers": [each.state_dict() for each in schedulers], "scaler": scaler.state_dict()},
                    per_rank={"sharded": sharded.state_dict(), "of sharded": of_sharded.state_dict(), "zero": zero.optim.state_dict(),
                              "generator": torch.get_rng_state()})
    if step == 10 and dies and round_number == 0:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def total(*states):
    found = hashlib.sha256()

    def add(value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            add(value.to_local()) if hasattr(value, "to_local") else found.update(value.detach().numpy().tobytes())
        else:
            found.update(repr(value).encode())

    add([each.state_dict() for each in states])
    return found.hexdigest()


(folder / f"end-{rank}").write_text(json.dumps({
    "batch norm": total(batch_norm, of_batch_norm, schedulers[0]), "amp": total(amp, of_amp, scaler, average),
    "two optimizers": total(generator, discriminator, of_generator, of_discriminator), "FSDP2": total(sharded, of_sharded),
    "ZeRO": total(with_zero, zero.optim, schedulers[1]), "random numbers": hashlib.sha256(torch.get_rng_state().numpy()).hexdigest()}))
dist.destroy_process_group()
'''

# A model of FSDP2 in a loop of recoverable(), whose ranks all die in the middle of the second epoch.
SHARDED = BEGINS + '''
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
model = nn.Sequential(nn.Linear(8, 15), nn.BatchNorm1d(15), nn.ReLU(), nn.Dropout(0.2), nn.Linear(15, 8))
mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("copies", "parts")) if world_size == 4 else (
    init_device_mesh("cpu", (world_size,)))
fully_shard(model[4], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
data = TensorDataset(torch.randn(24 * world_size, 8))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
torch.manual_seed(100 + rank)
training = ddprun.recoverable(model, optimizer, scheduler=scheduler, memory_every=2)
(folder / f"kept-{rank}-{round_number}").write_text(str(training.committed))
for epoch in training.epochs(2):
    sampler.set_epoch(epoch)
    for step in training.steps(loader):
        with step as [inputs]:
            optimizer.zero_grad()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            scheduler.step()
        if step.number == 9 and dies and round_number == 0:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
total = hashlib.sha256()
for each in [*model.state_dict().values(), *(its[name] for its in optimizer.state_dict()["state"].values() for name in sorted(its))]:
    total.update((each.to_local() if hasattr(each, "to_local") else each).detach().numpy().tobytes())
total.update(repr((scheduler.state_dict(), torch.get_rng_state().tolist())).encode())
(folder / f"end-{rank}").write_text(json.dumps({"FSDP2": total.hexdigest()}))
dist.destroy_process_group()
'''

# Each case is told by rank 0 as a line of JSON: its name and what it raises. `rank` is 0 in one process without ddprun.
REFUSED = '''
import collections, json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
import ddprun

is_worker = "MASTER_ADDR" in os.environ
dist.init_process_group("gloo", **({} if is_worker else {"store": dist.HashStore(), "rank": 0, "world_size": 1}))
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(1)
model[1].running_mean.fill_(rank)
optimizer = torch.optim.AdamW(model.parameters())
sharded = nn.Sequential(nn.Linear(4, 4))
fully_shard(sharded, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
of_sharded = torch.optim.AdamW(sharded.parameters())
sharded(torch.ones(2, 4)).sum().backward()
of_sharded.step()


class Settings:
    def __init__(self, value):
        self.value = value


def case(name, *arguments, **more):
    try:
        ddprun.keep(*arguments, **more)
        said = "kept"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    if rank == 0:
        print(json.dumps([name, said]), flush=True)


case("a state_dict as model", 1, model=model.state_dict())
case("an optimizer's state", 1, optimizer=optimizer.state_dict())
case("a module as optimizer", 1, optimizer=model)
case("FSDP2", 1, model=[model, sharded])
case("FSDP2's state", 1, replicated={"model": sharded.state_dict()})
case("FSDP2's state in an object", 1, replicated=Settings([sharded.state_dict()["0.bias"]]))
case("FSDP2's optimizer", 1, optimizer=of_sharded)
case("FSDP", 1, model=FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
case("ZeRO", 1, model=model, optimizer={"zero": ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)})
case("a module", 1, replicated={"model": model})
case("an optimizer", 1, replicated=[optimizer])
case("a scheduler", 1, replicated={"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)})
case("a negative step", -1, model=model)
case("a step that is no number", 0.5, model=model)
if is_worker:
    case("BatchNorm's state", 1, replicated={"model": model.state_dict()})
    case("a number", 1, replicated={"same": 5, "number": rank})
    case("an object", 1, replicated=Settings({"number": rank}))
    case("a key", 1, replicated={f"key {rank}": 1})
    case("a length", 1, replicated=[1] * (rank + 1))
    case("a shape", 1, replicated=[torch.ones(rank + 1)])
    with torch.no_grad():
        model[0].weight[3, 3] = rank
    case("a parameter", 1, model={"net": model})
    with torch.no_grad():
        model[0].weight[3, 3] = 0
    optimizer.param_groups[0]["lr"] = rank
    case("an option", 1, model=model, optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = 1
    case("other steps", 1 + rank, model=model)
import numpy
case("right", 3, model=[model], optimizer=optimizer, per_rank={"sharded": sharded.state_dict(), "module": model, "rank": rank},
     replicated={"set": {"a", "b", "c", "d"}, "ordered": collections.OrderedDict(a=torch.ones(2)), "numbers": numpy.ones(3),
                 "type": torch.float32, "shape": torch.Size([3]), "object": Settings(1)})
case("an earlier step", 2, model=model)
case("FSDP2 later", 4, model=sharded)
case("a module later", 4, replicated={"model": model})
dist.destroy_process_group()
'''

LOCAL = {
    "a state_dict as model": "TypeError: ddprun.keep(): model['0.weight'] is a Tensor, and not a torch.nn.Module: give the module itself",
    "an optimizer's state": "TypeError: ddprun.keep(): optimizer['param_groups'][0]['lr'] is a float, and not an optimizer: "
                            "give the optimizer itself",
    "a module as optimizer": "TypeError: ddprun.keep(): optimizer is a Sequential, and not an optimizer: give the optimizer itself",
    "FSDP2": "TypeError: ddprun.keep(): model[1]['0.weight'] is a DTensor, of which each rank may have its own part: "
             "put the state_dict() of the model into per_rank",
    "FSDP2's state": "TypeError: ddprun.keep(): replicated['model']['0.weight'] is a DTensor, of which each rank may have its own part: "
                     "put it into per_rank",
    "FSDP2's state in an object": "TypeError: ddprun.keep(): replicated.value[0] is a DTensor, of which each rank may have its own part: "
                                  "put it into per_rank",
    "FSDP2's optimizer": "TypeError: ddprun.keep(): optimizer['state'][0]['exp_avg'] is a DTensor, of which each rank may have its own "
                         "part: put the state_dict() of the optimizer into per_rank",
    "FSDP": "TypeError: ddprun.keep(): model has a FullyShardedDataParallel, of which each rank has its own part: "
            "put its state_dict() into per_rank",
    "ZeRO": "TypeError: ddprun.keep(): optimizer['zero'] is a ZeroRedundancyOptimizer, of which each rank has its own part: "
            "put its optim.state_dict() into per_rank",
    "a module": "TypeError: ddprun.keep(): replicated['model'] is a module (Sequential): give it as model=…",
    "an optimizer": "TypeError: ddprun.keep(): replicated[0] is an optimizer (AdamW): give it as optimizer=…",
    "a scheduler": "TypeError: ddprun.keep(): replicated['scheduler'] is a StepLR: give its state_dict()",
    "a negative step": "ValueError: ddprun.keep(): step is -1: the steps of the whole training are counted from 0 or 1",
    "a step that is no number": "TypeError: ddprun.keep(): step is 0.5, and not a whole number",
    "right": "kept",
    "an earlier step": "ValueError: ddprun.keep() counts the steps of the whole training: 2 comes after 3",
    "FSDP2 later": "TypeError: ddprun.keep(): model['0.weight'] is a DTensor, of which each rank may have its own part: "
                   "put the state_dict() of the model into per_rank",
    "a module later": "TypeError: ddprun.keep(): replicated['model'] is a module (Sequential): give it as model=…",
}
ADVICE = "differs between ranks 0 and 1: give the module, or put it into per_rank"
APART = ("differs between ranks 0 and 1: the replicas have drifted apart, or each rank trains its own: "
         "then put the state_dict() into per_rank")
BETWEEN_RANKS = {
    "BatchNorm's state": f"ValueError: ddprun.keep(): replicated['model']['1.running_mean'] {ADVICE}",
    "a number": f"ValueError: ddprun.keep(): replicated['number'] {ADVICE}",
    "an object": f"ValueError: ddprun.keep(): replicated.value['number'] {ADVICE}",
    "a key": f"ValueError: ddprun.keep(): replicated.keys() {ADVICE}",
    "a length": f"ValueError: ddprun.keep(): len(replicated) {ADVICE}",
    "a shape": f"ValueError: ddprun.keep(): replicated[0] {ADVICE}",
    "a parameter": f"ValueError: ddprun.keep(): model['net']['0.weight'] {APART}",
    "an option": f"ValueError: ddprun.keep(): optimizer['param_groups'][0]['lr'] {APART}",
    "other steps": "ValueError: ddprun.keep() is called for step 1 on rank 0, and for step 2 on rank 1",
}

# Ranks that differ from a step on, in what argument 2 names; they die after step 4, and tell what they find.
DRIFTED = '''
import os, pathlib, signal, sys
import torch
import torch.distributed as dist
import ddprun

folder, what, first = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
if what == "library":
    import ctypes

    def refuse(*_):
        raise OSError("libstdc++.so.6: version `GLIBCXX_3.4.30' not found")
    ctypes.CDLL = refuse
if what == "no file in memory" and rank == 1:
    def refuse(*_):
        raise OSError(24, "Too many open files")
    os.memfd_create = refuse
kept = ddprun.kept()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    if kept:
        assert torch.equal(kept.replicated["tensor"], torch.full((5000,), float(kept.step)))
    (folder / f"kept-{rank}").write_text(str(kept and kept.step))
    dist.destroy_process_group()
    sys.exit()
for step in range(1, 5):
    differs = rank == 1 and step >= first
    tensor = torch.full((5000,), float(step))
    if differs and what == "tensor":
        tensor += 1e-3
    ddprun.keep(step, replicated={"tensor": tensor, "rate": 0.1 if differs and what == "value" else 0.5})
    dist.barrier()
os.kill(os.getpid(), signal.SIGKILL)
'''


class Test(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def environment(self, control):
        control.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "worker_lib/python"), "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", "DDPRUN_CONTROL_DIR": str(control),
                "GLOO_SOCKET_IFNAME": "lo"}

    def run_job(self, folder, program, *arguments, ranks, nodes=1, restarts=1):
        """What its ranks and agents say."""
        folder.mkdir(exist_ok=True)
        (folder / "program.py").write_text(program)
        of_nodes = []
        if nodes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                of_nodes = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free.getsockname()[1]}"]
        agents = []
        for node in range(nodes):
            errors = open(folder / f"errors-{node}", "w+")
            self.addCleanup(errors.close)
            agents.append((errors, subprocess.Popen(
                [DDPRUN, f"--nproc-per-node={ranks // nodes}", f"--max-restarts={restarts}", "--rdzv-id=job",
                 f"--events={folder}/events-{node}", *of_nodes, folder / "program.py", folder, *arguments],
                stdout=errors, stderr=errors, cwd=folder, env=self.environment(folder / f"control-{node}"))))
        try:
            codes = [agent.wait(LIMIT_S) for _, agent in agents]
        finally:
            for _, agent in agents:
                if agent.poll() is None:
                    agent.terminate()
                    agent.wait()
        said = "".join((folder / f"errors-{node}").read_text(errors="replace") for node in range(nodes))
        self.assertEqual(codes, [0] * nodes, said)
        return said


class Restored(Test):
    def check(self, ranks, nodes=1, program=MODELS):
        def ends(folder):
            return [json.loads((folder / f"end-{rank}").read_text()) for rank in range(ranks)]

        plain, killed = self.folder / "plain", self.folder / "killed"
        self.run_job(plain, program, "lives", ranks=ranks, nodes=nodes)
        said = self.run_job(killed, program, "dies", ranks=ranks, nodes=nodes)
        for rank in range(ranks):
            self.assertEqual((killed / f"kept-{rank}-1").read_text(), "8", said)
        self.assertNotIn("in memory", said)
        for rank, (expected, found) in enumerate(zip(ends(plain), ends(killed))):
            for kind in expected:
                with self.subTest(kind, rank=rank):
                    self.assertEqual(found[kind], expected[kind])

    def test_on_one_rank(self):
        self.check(ranks=1)

    def test_on_two_ranks(self):
        self.check(ranks=2)

    def test_on_three_ranks(self):
        self.check(ranks=3)

    def test_on_two_nodes(self):
        self.check(ranks=4, nodes=2)

    def test_fsdp2_in_a_loop_of_recoverable(self):
        self.check(ranks=2, program=SHARDED)

    def test_hsdp_in_a_loop_of_recoverable(self):
        self.check(ranks=4, program=SHARDED)


class Refused(Test):
    def cases(self, said):
        return dict(json.loads(line) for line in said.splitlines() if line.startswith('["'))

    def test_wrong_calls_in_one_process_without_ddprun(self):
        done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=LIMIT_S,
                              env=self.environment(self.folder / "control"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.cases(done.stdout), LOCAL)

    def test_wrong_calls_and_ranks_that_differ(self):
        said = self.run_job(self.folder / "job", REFUSED, ranks=2)
        self.maxDiff = None
        self.assertEqual(self.cases(said), {**LOCAL, **BETWEEN_RANKS})


class Drifted(Test):
    def kept(self, *arguments, ranks=3, nodes=1):
        said = self.run_job(self.folder / "job", DRIFTED, *arguments, ranks=ranks, nodes=nodes)
        return [(self.folder / "job" / f"kept-{rank}").read_text() for rank in range(ranks)], said

    def events(self, node):
        events = [json.loads(line) for line in (self.folder / f"job/events-{node}").read_text().splitlines()]
        return [event for event in events if event["event"] == "replicas_differ"]

    def check_differs(self, said, step):
        self.assertEqual(said.count(f"the snapshot of step {step} in memory is not used: what is equal on all ranks"), 1, said)
        self.assertEqual(said.count("is not used"), 1, said)

    def test_a_tensor(self):
        # The last snapshot that is right stays, however many follow.
        steps, said = self.kept("tensor", "3")
        self.assertEqual(steps, ["2"] * 3, said)
        self.check_differs(said, 3)
        self.assertRegex(said, "differs between ranks (0 and 1|1 and 2)")
        event, *_ = self.events(0)  # a second one may name the tensor
        self.assertEqual((event["round"], event["step"]), (0, 3))
        self.assertIn(event["ranks"], ([0, 1], [1, 2]))
        self.assertIn(event["sentence"], said)

    def test_a_value(self):
        steps, said = self.kept("value", "2")
        self.assertEqual(steps, ["1"] * 3, said)
        self.check_differs(said, 2)
        self.assertIn("differs between ranks 0 and 1", said)

    def test_a_tensor_that_differs_is_named_two_snapshots_later(self):
        steps, said = self.kept("tensor", "2")
        self.assertEqual(steps, ["1"] * 3, said)
        first, second = self.events(0)
        self.assertIn("the snapshot of step 2 in memory is not used", first["sentence"])
        self.assertRegex(second["sentence"], r"replicated\['tensor'\] differs between ranks (0 and 1|1 and 2): ")
        self.assertIn(second["step"], (3, 4))
        self.assertEqual(said.count("ddprun: replicated['tensor'] differs between ranks"), 1, said)

    def test_on_another_node(self):
        steps, said = self.kept("tensor", "4", ranks=2, nodes=2)
        self.assertEqual(steps, ["3"] * 2, said)
        # One line of kept() by each node; keep() may have said it, too.
        self.assertEqual(said.count("the snapshot of step 4 in memory is not used: what is equal on all ranks differs between ranks "
                                    "0 and 1"), 2, said)

    def test_nodes_that_drift_apart_are_told_while_they_train(self):
        steps, said = self.kept("tensor", "2", ranks=2, nodes=2)
        self.assertEqual(steps, ["None"] * 2, said)
        for node in range(2):
            [event] = self.events(node)
            self.assertIn(event["step"], (2, 3, 4))
            self.assertEqual(event["ranks"], [0, 1])
            self.assertIn(event["sentence"], said)

    def test_a_library_that_cannot_be_loaded_is_a_line(self):
        steps, said = self.kept("library", "9", ranks=2)
        self.assertEqual(steps, ["None"] * 2, said)
        self.assertIn("ddprun: no snapshots in memory: the agent's library cannot be used: libstdc++.so.6: version", said)

    def test_one_rank_without_memory_is_a_line_and_no_other_waits_for_it(self):
        steps, said = self.kept("no file in memory", "9", ranks=2)
        self.assertEqual(steps, ["None"] * 2, said)
        self.assertIn("ddprun: no snapshots in memory: the agent's library cannot be used: [Errno 24] Too many open files", said)
        self.assertEqual(said.count("ddprun: no snapshots in memory from here on: rank 1 has no memory for them"), 1, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
