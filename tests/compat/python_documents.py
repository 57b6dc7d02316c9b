"""What the documents and docstrings show of Python does what a reader expects of it, with nothing but what is shown.

  python_documents.py DDPRUN [unittest's arguments]

- Each name `ddprun.…` in the documents is there after `import ddprun`, which imports nothing that is not asked for.
- Each block of Python, and each call in the text that has arguments, runs: alone, and in two workers. "…" is the reader's part.
  Of a block for a framework only the imports run: scripts/frameworks has the rest.
- A block that calls ddprun.launch() is a script of its own.
- A block that calls ddprun.keep() runs in three workers, too, that all die behind it: each gets back what it had.
"""
import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(__file__).resolve().parents[2]
PACKAGE = SOURCE / "worker_lib/python"
DOCUMENTS = [SOURCE / name for name in ("README.md", "worker_lib/README.md", "agent/README.md", "launcher/README.md")]
DOCSTRINGS = [PACKAGE / "ddprun" / name for name in ("__init__.py", "progress.py")]

READERS_PART = '''
import contextlib, datetime, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
os.environ.setdefault("RANK", "0"), os.environ.setdefault("WORLD_SIZE", "1")
if "MASTER_ADDR" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.zeros(8, 1))
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
model = torch.nn.Linear(2, 1)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
save = print
scaler, loss_of, loss, step, total, steps = None, torch.nn.functional.mse_loss, torch.tensor(0.5), 1, 10, 6
'''

LAUNCHES = '''
import ddprun


def train(rate, epochs):
    return rate


'''

# A training step is the reader's part of a block that calls ddprun.keep().
TRAINS = READERS_PART + '''
import ddprun, pathlib, signal
steps = 6
model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
torch.manual_seed(int(os.environ["RANK"]))
sharded, of_sharded = torch.nn.Identity(), None


def train():
    its, of_its = (sharded, of_sharded) if of_sharded else (ddp, optimizer)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        its(torch.randn(4, *next(its.parameters()).shape[1:])).sum().backward()
        of_its.step()
        scheduler.step()


'''
DIES = '''
if "MASTER_ADDR" in os.environ:
    states = ([sharded.state_dict(), of_sharded.state_dict()] if of_sharded else
              [model.state_dict(), optimizer.state_dict(), torch.get_rng_state().tolist()])
    found = repr([each.to_local() if hasattr(each, "to_local") else each for each in torch.utils._pytree.tree_leaves(states)])
    file = pathlib.Path(os.environ["FOLDER"]) / os.environ["RANK"]
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        file.write_text(found)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    assert kept and kept.step in (5, 6), kept
    expected = file.read_text()
    file.unlink()
    assert found == expected, "another state"
'''


def docstrings(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""


def shown():
    """(where, text) of each block and call."""
    for path in DOCUMENTS:
        text = path.read_text()
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            yield path.name, block
        for call in re.findall(r"`(ddprun\.[\w.]+\([^`…]+\))`", text):
            yield path.name, "import ddprun\n" + call + "\n"
    for path in DOCSTRINGS:
        for text in docstrings(path):
            for block in re.findall(r"(?:^    .*\n|^\n)+", text, re.MULTILINE):
                if block.strip():
                    begin = "" if "import" in block else "import ddprun\n"
                    yield path.name, begin + textwrap.dedent(block.strip("\n")) + "\n"


class Shown(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.script = Path(temporary.name) / "program.py"
        self.environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}

    def run_program(self, text, *launcher):
        self.script.write_text(text)
        command = [*launcher, self.script] if launcher else [sys.executable, self.script]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}{done.stderr}")
        return done.stdout

    def test_each_name_is_there_after_import_ddprun(self):
        names = set()
        for path in DOCUMENTS:
            names |= set(re.findall(r"`(ddprun(?:\.[a-z_]+)+)\b[^`]*`", path.read_text()))
        for _, text in shown():
            names |= set(re.findall(r"\bddprun(?:\.[a-z_]+)+", text))
        names = {name for name in names if not name.startswith("ddprun.torch")}  # the sources have no library of it
        self.assertTrue({"ddprun.recoverable", "ddprun.keep", "ddprun.kept", "ddprun.progress.report"} <= names, names)
        for name in sorted(names):
            self.run_program(f"import ddprun\n{name}\n")

    def test_import_ddprun_imports_nothing_else_of_it(self):
        out = self.run_program("import sys\nbefore = set(sys.modules)\nimport ddprun\nprint(sorted(set(sys.modules) - before))\n"
                               "assert 'progress' in dir(ddprun)\n"
                               "try: ddprun.nothing\nexcept AttributeError as error: print(error)\n")
        self.assertNotRegex(out, r"torch|ddprun\.|importlib\.metadata")
        self.assertIn("module 'ddprun' has no attribute 'nothing'", out)

    def test_the_version_is_that_of_ddprun(self):
        [version] = re.findall(r"project\(ddprun VERSION ([0-9.]+)", (PACKAGE.parents[1] / "CMakeLists.txt").read_text())
        self.assertEqual(self.run_program("import ddprun\nprint(ddprun.__version__)\n").strip(), version)

    def test_without_a_library_the_backend_is_an_error_that_says_so(self):
        self.run_program("import ddprun\nassert not hasattr(ddprun, 'torch')\n"
                         "try: ddprun.torch\nexcept AttributeError as error: assert 'no library' in str(error), error\n"
                         "try: import ddprun.torch\nexcept ImportError as error: assert 'no library' in str(error), error\n")

    def test_what_is_shown_runs(self):
        program = READERS_PART
        found = [(where, text) for where, text in shown() if "ddprun.keep(" not in text and "ddprun.launch(" not in text]
        self.assertGreaterEqual(len(found), 4, found)
        for where, text in found:
            text = re.sub(r"^(\s*)…$", r"\1pass", text, flags=re.MULTILINE)
            if re.search(r"^from ddprun\.(accelerate|lightning|transformers) ", text, re.MULTILINE):
                compile(text, where, "exec")
                text = "".join(re.findall(r"^from .*\n", text, re.MULTILINE))
            program += f"# {where}\n{text}\n"
        self.assertIn("ddprun.progress.report(step, total, loss=loss)", program)
        self.run_program(program)
        self.run_program(program, DDPRUN, "--nproc-per-node=2", "--max-restarts=0")

    def test_what_is_shown_of_launch_is_a_script(self):
        found = [text for _, text in shown() if "ddprun.launch(" in text]
        self.assertEqual(len(found), 2, found)
        self.environment["PATH"] = f"{DDPRUN.parent}:{os.environ['PATH']}"
        for text in found:
            self.assertIn("0.1", self.run_program(LAUNCHES + text.replace("…", "pass")))

    def test_what_is_shown_of_keep_brings_back_what_each_rank_had(self):
        found = [(where, text) for where, text in shown() if "ddprun.keep(" in text]
        self.assertEqual([where for where, _ in found], ["README.md", "README.md", "__init__.py"], found)
        self.environment["FOLDER"] = str(self.script.parent)
        for where, text in found:
            program = f"{TRAINS}# {where}\n" + re.sub(r"^(\s*)(…|\.\.\.)$", r"\1train()", text, flags=re.MULTILINE) + DIES
            self.assertIn("train()", program.partition("# " + where)[2])
            self.run_program(program)
            self.run_program(program, DDPRUN, "--nproc-per-node=3", "--max-restarts=1")
            self.assertEqual(list(self.script.parent.iterdir()), [self.script], "a rank has not compared")


class Wrappers(unittest.TestCase):
    """ddprun.recoverable() takes the optimizer out of a framework's wrapper."""

    def setUp(self):
        import torch
        sys.path.insert(0, str(PACKAGE))
        self.addCleanup(sys.path.remove, str(PACKAGE))
        from ddprun import recovery, training
        self.recovery, self.training, self.torch = recovery, training, torch
        self.optimizer = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters())

    def test_none(self):
        self.assertEqual(self.training._unwrapped(self.optimizer), (self.optimizer, None))

    def test_accelerate(self):
        import accelerate
        accelerate.Accelerator(cpu=True)
        from accelerate.optimizer import AcceleratedOptimizer
        wrapped = AcceleratedOptimizer(self.optimizer)
        self.assertEqual(self.training._unwrapped(wrapped), (self.optimizer, None))
        wrapped.scaler = "a GradScaler"
        self.assertEqual(self.training._unwrapped(wrapped), (self.optimizer, "a GradScaler"))

    def test_lightning(self):
        import lightning
        from lightning.pytorch.core.optimizer import LightningOptimizer
        self.assertEqual(self.training._unwrapped(LightningOptimizer(self.optimizer)), (self.optimizer, None))
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        _, wrapped = fabric.setup(self.torch.nn.Linear(2, 1), self.optimizer)
        self.assertIsNot(wrapped, self.optimizer)
        self.assertEqual(self.training._unwrapped(wrapped), (self.optimizer, None))

    def test_one_with_a_state_of_its_own_is_refused(self):
        optimizer = self.optimizer

        class Lookahead(self.torch.optim.Optimizer):
            def __init__(self):
                self.optimizer, self.param_groups, self.state = optimizer, optimizer.param_groups, {}

        wrapped = Lookahead()
        self.assertEqual(self.training._unwrapped(wrapped), (wrapped, None))
        store = self.torch.distributed.HashStore()
        self.torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(self.torch.distributed.destroy_process_group)
        model = self.torch.nn.parallel.DistributedDataParallel(self.torch.nn.Linear(2, 1))
        self.assertEqual(self.recovery._why_not([model], [wrapped], {}),
                         "its optimizer is a Lookahead, a wrapper with a state of its own")


if __name__ == "__main__":
    unittest.main(verbosity=2)
