"""Programs that close all descriptors that they find, as daemons do, and open files of their own: nothing of ddprun's is
written into these, and none is closed.

  python_descriptors.py DDPRUN [unittest's arguments]

All but two get a stand-in for PyTorch, which starts at once. Each program runs in two rounds: rank 1 fails in the
first one.
"""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("DDPRUN_TEST_PYTHON", "/usr/bin/python3")
LONGEST_S = 400  # on a machine that others load
REAL_PYTHON = SOURCE / ".venv/bin/python"

OPTIMIZER = '''
hooks = {}


def register_optimizer_step_post_hook(hook):
    hooks[id(hook)] = hook


class Optimizer:
    state = {}

    def step(self):
        for hook in hooks.values():
            hook(self, (), {})
'''

# Files enough for every number that ddprun may have had. What is in them is compared at the end.
BEGIN = '''
import os, sys, time
folder, moment = sys.argv[1:3]
round, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
files = []

def take(now):
    if now != moment:
        return
    os.closerange(3, 1024)
    for number in range(100):
        files.append(open(f"{folder}/{round}-{rank}-{number}", "w+"))
        files[-1].write(f"file {number}\\n")
        files[-1].flush()

def check():
    for number, file in enumerate(files):
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)), file.name
        with open(file.name) as again:
            text = again.read()
        assert text == f"file {number}\\n", (file.name, text)
    print(f"round {round} rank {rank}: {len(files)} files are as they were", flush=True)

def end():
    check()
    while round == 0 and not os.path.exists(folder + "/go"):
        time.sleep(0.01)
    if round == 0 and rank == 0:
        time.sleep(1000)
    for file in files:
        file.write("end\\n")  # and flushed when the interpreter ends
    sys.exit(3 if round == 0 else 0)
'''

STEPS = '''
take("first")
import torch
take("torch")
optimizer = torch.optim.Optimizer()
optimizer.step()
take("step")
optimizer.step()
import ddprun
ddprun.progress.report(3, 10, loss=0.5)
take("report")
ddprun.progress.report(4, 10)
pid = os.fork()
if pid == 0:
    check()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
end()
'''

MOMENTS = ("first", "torch", "step", "report")


class Job(contextlib.ExitStack):
    """`reaches(text)` waits until it is in what was printed on stderr."""

    def __init__(self, folder, text, *options, python=PYTHON, arguments=(), **environment):
        super().__init__()
        (folder / "program.py").write_text(BEGIN + textwrap.dedent(text))
        self._output, self._errors = (self.enter_context(open(folder / name, "w")) for name in ("out", "err"))
        self.folder, self.events = folder, folder / "events"
        self.process = subprocess.Popen(
            [DDPRUN, "--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=1", f"--events={self.events}", *options,
             folder / "program.py", folder, *arguments],
            stdout=self._output, stderr=self._errors, cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": str(python), "DDPRUN_LOG_LEVEL": "info",
                 **environment})
        self.callback(self.process.wait)
        self.callback(self.process.terminate)

    def printed(self):
        return (self.folder / "out").read_text(), (self.folder / "err").read_text()

    def reaches(self, is_so):
        """Where the job ends first, it is asked once more."""
        until = time.monotonic() + LONGEST_S
        while not is_so(*self.printed()) and time.monotonic() < until:
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            return is_so(*self.printed())
        return True

    def go(self):
        (self.folder / "go").touch()
        return self.process.wait(LONGEST_S)

    def ended(self):
        """The events about workers that have ended, by (round, rank)."""
        events = [json.loads(line) for line in self.events.read_text().splitlines()]
        return {(each["round"], each["rank"]): each for each in events if each["event"] == "worker_exited"}


class Programs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        torch = self.folder / "lib/torch"
        for name, text in (("__init__", "print('torch is imported')\n"), ("optim/__init__", "from .optimizer import Optimizer"),
                           ("optim/optimizer", OPTIMIZER), ("_dynamo", ""), ("distributed", ""), ("nn/__init__", ""),
                           ("nn/parallel", ""), ("utils/__init__", ""), ("utils/data", "")):
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / (name + ".py")).write_text(text)
        (torch / "__init__.py").write_text("print('torch is imported')\nfrom torch import optim\n")

    def job(self, text, *options, **more):
        more.setdefault("arguments", ["none"])
        if "python" not in more:
            more["PYTHONPATH"] = f"{self.folder / 'lib'}:{SOURCE / 'worker_lib/python'}"
        return Job(self.folder, text, *options, **more)

    def check(self, job, standbys):
        """Both rounds end well, and what was opened in them is as it was."""
        if standbys:
            self.assertTrue(job.reaches(lambda _, err: "wait for a restart" in err or "waits for a restart" in err), job.printed())
        self.assertTrue(job.reaches(lambda out, _: out.count("round 0 rank") >= 4), job.printed())
        self.assertEqual(job.go(), 0, job.printed())
        out, err = job.printed()
        self.assertEqual(out.count("100 files are as they were"), 8, (out, err))  # and as many of forks
        self.assertEqual(out.count("torch is imported"), 4, out)
        self.assertNotIn("Error", err)
        for file in self.folder.glob("1-*-*"):
            self.assertEqual(file.read_text(), f"file {file.name.rpartition('-')[2]}\nend\n", file.name)


class Closed(Programs):
    def by_moment(self, standbys, *options):
        for moment in MOMENTS:
            with self.subTest(moment=moment), self.job(STEPS, *options, arguments=[moment]) as job:
                self.check(job, standbys)
            (self.folder / "go").unlink(missing_ok=True)

    def test_without_standbys(self):
        self.by_moment(0, "--standby=off")

    def test_with_some(self):
        self.by_moment(1, "--standby=1", "--preload=torch")

    def test_with_as_many_as_workers(self):
        self.by_moment(2, "--standby=auto", "--preload=torch")

    def test_what_was_closed_is_not_there_for_a_program_that_is_started_anew(self):
        text = "take('first')\nos.environ['OMP_NUM_THREADS'] = '7'\n" + STEPS.replace('take("first")', "")
        with self.job(text, "--standby=2", "--preload=torch", arguments=["first"]) as job:
            self.assertTrue(job.reaches(lambda _, err: "2 wait for a restart" in err), job.printed())
            self.assertEqual(job.go(), 0, job.printed())
            out, _ = job.printed()
            self.assertEqual(out.count("round 1 rank"), 4, out)
            self.assertNotIn("Error", job.printed()[1])


class Anew(Programs):
    def test_a_program_that_is_started_anew_keeps_its_hooks(self):
        """Its steps are shown, and so is what it does in its last one."""
        text = """
            os.environ["OMP_NUM_THREADS"] = "7"
            import torch
            optimizer = torch.optim.Optimizer()
            for _ in range(5 + round):
                optimizer.step()
            check()
            while round == 0 and not os.path.exists(folder + "/go"):
                time.sleep(0.01)
            sys.exit(3 if rank == 1 else 0)
        """
        with self.job(text, "--standby=2", "--preload=torch", "--hang-timeout=60") as job:
            self.assertTrue(job.reaches(lambda _, err: "2 wait for a restart" in err), job.printed())
            job.go()
            self.assertIn("no standbys: the program sets OMP_NUM_THREADS", job.printed()[1])
            ended = job.ended()
            self.assertEqual(ended[0, 1]["progress"]["step"], 5)
            self.assertEqual(ended[1, 1]["progress"]["step"], 6, ended)

    def test_a_module_that_looks_at_all_variables(self):
        """It may have read those of a worker, so each rank imports it itself."""
        init = self.folder / "lib/torch/__init__.py"
        init.write_text("import os\nmine = {name: value for name, value in os.environ.items() if name.startswith('MINE_')}\n"
                        "loaded_by = os.getpid()\nfrom torch import optim\n")
        text = """
            import torch
            print(f"round {round}", "waited" if torch.loaded_by != os.getpid() else "imported", flush=True)
            while round == 0 and not os.path.exists(folder + "/go"):
                time.sleep(0.01)
            sys.exit(3 if round == 0 else 0)
        """
        for options in ((), ("--hang-timeout=60",)):
            with self.subTest(options=options), self.job(text, "--standby=auto", "--preload=torch", *options) as job:
                self.assertTrue(job.reaches(lambda _, err: "2 wait for a restart" in err or "no standbys" in err), job.printed())
                self.assertEqual(job.go(), 0, job.printed())
                out, err = job.printed()
                self.assertEqual(out.count("round 1 imported"), 2, (out, err))
                self.assertRegex(err, "torch .* while it is imported")
            (self.folder / "go").unlink()


@unittest.skipUnless(REAL_PYTHON.exists(), f"{REAL_PYTHON} is not there")
class WithPyTorch(Programs):
    STEPS = '''
        take("first")
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        take("torch")
        dist.init_process_group("gloo")
        if {is_watched}:
            assert "tqdm" in sys.modules
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        {last}
    '''

    def test_closed(self):
        """A group has sockets of its own, so it is made afterwards."""
        text = textwrap.dedent(self.STEPS).format(is_watched=False, last="end()")
        with self.job(text, "--standby=auto", "--hang-timeout=60", python=REAL_PYTHON, arguments=["torch"]) as job:
            self.assertTrue(job.reaches(lambda out, _: out.count("round 0 rank") == 2), job.printed())
            self.assertEqual(job.go(), 0, job.printed())
            out, err = job.printed()
            self.assertEqual(out.count("100 files are as they were"), 4, (out, err))
            self.assertNotIn("Error", err)

    def test_a_hang_is_noticed_after_a_restart_where_torch_imports_tqdm(self):
        last = "end() if round == 0 else None\nif rank == 1:\n    time.sleep(1000)\ndist.barrier()"
        text = textwrap.dedent(self.STEPS).format(is_watched=True, last=last)
        with self.job(text, "--standby=auto", "--hang-timeout=10", "--on-hang=restart", python=REAL_PYTHON) as job:
            # While it waits here, nothing hangs: no rank is in a call.
            self.assertTrue(job.reaches(lambda _, err: "2 wait for a restart" in err), job.printed())
            job.go()
            self.assertIn("rank 1 hung: rank 1 has not come for longer", job.printed()[1])
            self.assertNotIn("no standbys", job.printed()[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
