"""ddprun --as-torchrun -- COMMAND: what the command starts as torchrun is ddprun, by each of torchrun's ways.

  python_as_torchrun.py DDPRUN [TEST…]
"""
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
PACKAGE = Path(__file__).resolve().parents[2] / "worker_lib/python"
LIMIT_S = 120
TORCHRUN = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
# One line of each worker, and a failure of rank 1 if it is asked for.
WORKER = '''
import os, sys, time
agent = os.path.basename(os.readlink(f"/proc/{os.getppid()}/exe"))
os.write(1, f"{agent} {os.environ['RANK']} {os.environ['WORLD_SIZE']} {' '.join(sys.argv[1:])}\\n".encode())
written = f"written-{os.getppid()}"
if os.environ["RANK"] == "0":
    open(written, "w").close()
elif "fail" in sys.argv:  # ddprun kills rank 0 then
    while not os.path.exists(written):
        time.sleep(0.01)
    sys.exit(3)
'''
LIBRARY = '''
import os, signal, sys, time
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def f(value):
    if value == "raises" and os.environ["RANK"] == "1":
        raise ValueError("lr must be positive")
    if value == "leaves":
        import ddprun
        open(f"ready-{os.environ['RANK']}", "w").close()
        while not ddprun.should_leave():
            time.sleep(0.01)
    return value, os.path.basename(os.readlink(f"/proc/{os.getppid()}/exe"))

if __name__ == "__main__":
    def launch(entrypoint, *args):
        config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
                              run_id="of-library", max_restarts=0)
        return elastic_launch(config, entrypoint)(*args)
    what = sys.argv[1]
    if what == "function":
        print(launch(f, 5))
    elif what == "nested":
        print(launch(os.system, "./nested.sh"))
    elif what == "legacy":
        from torch.distributed.launch import main
        main(["--nproc-per-node=2", "worker.py", "a"])
    elif what == "program":
        print(launch("/bin/echo", "local rank ${local_rank}"))
    elif what == "stopped":
        try:
            launch("/bin/sh", "-c", "trap 'touch saved; exit' TERM; touch ready; while :; do sleep 0.01; done")
        except SignalException as error:
            print("stopped by", error.sigval.name, os.path.exists("saved"))
    elif what == "leaves":
        launch(f, what)
    elif what == "refused":
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        class Own(DefaultLogsSpecs):
            pass
        try:
            elastic_launch(LaunchConfig(1, 1, 1, logs_specs=Own(log_dir="/dev/null"), rdzv_backend="static"), "/bin/true")()
        except ValueError as error:
            print(error)
    else:
        try:
            launch(f, "raises") if what == "raises" else launch(sys.executable, "-u", "worker.py", "fail")
        except ChildFailedError as error:
            [(rank, failure)] = error.failures.items()
            print(rank, failure.local_rank, failure.exitcode, failure.pid > 0, "lr must be positive" in str(error))
'''


def has(package):
    return importlib.util.find_spec(package) is not None


class InFolder(unittest.TestCase):
    """At the end of each test no temporary file is left, the folder of --as-torchrun neither."""

    def setUp(self):
        whole = tempfile.TemporaryDirectory()
        self.addCleanup(whole.cleanup)
        self.folder = Path(whole.name)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        (self.folder / "worker.py").write_text(WORKER)
        (self.folder / "library.py").write_text(LIBRARY)
        (self.folder / "bin").mkdir()
        (self.folder / "bin/torchrun").write_text(TORCHRUN)
        hidden = ("PET_", "TORCHELASTIC_", "DDPRUN_", "PYTHON", "RANK", "WORLD_SIZE", "VIRTUAL_ENV", "CONDA_PREFIX", "TORCH_DEVICE_BACKEND")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.environment |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        self.addCleanup(self.nothing_is_left)

    def nothing_is_left(self):
        deadline = time.monotonic() + LIMIT_S
        while left := list(self.temporary.glob("ddprun-*")):  # another process removes the folder
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.01)

    def start(self, *command, options=(), **more):
        return subprocess.Popen([DDPRUN, "--as-torchrun", *options, "--", *map(str, command)], env=self.environment, cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    def run_it(self, *command, code=0, options=()):
        process = self.start(*command, options=options)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, code, out + err)
        return out, err

    def workers(self, *command, arguments="", **more):
        out, _ = self.run_it(*command, **more)
        self.are_workers(out, arguments)

    def are_workers(self, out, arguments=""):
        lines = sorted(line.strip() for line in out.splitlines() if line.startswith(("ddprun ", "python")))
        self.assertEqual(lines, [f"ddprun {rank} 2 {arguments.replace('N', str(rank))}".strip() for rank in (0, 1)])


@unittest.skipUnless(has("torch"), "without the package torch")
class Ways(InFolder):
    def test_torchrun_on_path(self):
        (self.folder / "train.sh").write_text("exec torchrun --nproc-per-node=2 worker.py a\n")
        self.workers("sh", "train.sh", arguments="a")
        self.workers("torchrun", "--nproc-per-node=2", "worker.py")

    def test_torchruns_own_script(self):
        self.workers(sys.executable, self.folder / "bin/torchrun", "--nproc-per-node=2", "worker.py", "a", arguments="a")

    def test_modules(self):
        for module, more, arguments in (("run", (), "a"), ("launch", (), "--local-rank=N a"), ("launch", ("--use-env",), "a")):
            with self.subTest(module, more=more):
                self.workers(sys.executable, "-m", f"torch.distributed.{module}", *more, "--nproc_per_node", "2", "worker.py", "a",
                             arguments=arguments)

    def test_exit_codes_are_torchruns(self):
        torchrun = ("torchrun", "--nproc-per-node=2", "worker.py", "fail")
        self.workers(*torchrun, arguments="fail", code=1)
        self.workers(sys.executable, "-m", "torch.distributed.run", *torchrun[1:], arguments="fail", code=1)
        self.workers(*torchrun, arguments="fail", code=3, options=["--exit-code=worker"])

    def test_numbers_of_workers_and_nodes_are_torchruns(self):
        """In a batch script of two nodes, and of one."""
        for nodes in ("2", "1"):
            self.environment |= {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": nodes, "SLURM_NNODES": nodes, "SLURMD_NODENAME": "n1",
                                 "SLURM_CPUS_ON_NODE": "2"}
            for torchrun in (("torchrun",), (sys.executable, "-m", "torch.distributed.run")):
                with self.subTest(torchrun, nodes=nodes):
                    self.assertEqual(self.run_it(*torchrun, "worker.py")[0], "ddprun 0 1 \n")

    def test_options_are_for_each_ddprun(self):
        told = self.folder / "events"
        self.workers(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "worker.py", options=[f"--events={told}"])
        self.assertIn('"event":"finished"', told.read_text())

    def test_a_worker_that_calls_torchrun(self):
        (self.folder / "nested.sh").write_text("#!/bin/sh\nexec torchrun --nproc-per-node=2 worker.py\n")
        (self.folder / "nested.sh").chmod(0o755)
        self.workers("torchrun", "--nproc-per-node=1", "./nested.sh")

    def test_a_worker_that_calls_torchrun_by_another_python(self):
        inner = self.folder / "bin"
        (inner / "python").symlink_to(sys.executable)
        (self.folder / "pyvenv.cfg").symlink_to(Path(sys.prefix) / "pyvenv.cfg")
        (self.folder / "lib").symlink_to(Path(sys.prefix) / "lib")
        (self.folder / "which.py").write_text("import sys\nprint(sys.executable)\n")
        (self.folder / "nested.sh").write_text(f"#!/bin/sh\nexec {inner}/python -m torch.distributed.run which.py\n")
        (self.folder / "nested.sh").chmod(0o755)
        for how in (("-m", "torch.distributed.run", "./nested.sh"), ("library.py", "nested")):
            out, _ = self.run_it(sys.executable, *how)
            self.assertEqual({line for line in out.splitlines() if line.startswith("/")}, {f"{inner}/python"})

    def test_a_part_of_the_tree_may_have_torchs_own(self):
        for out_of_it in (("DDPRUN_AS_TORCHRUN=0",), ("DDPRUN_AS_TORCHRUN=false",), ("-u", "DDPRUN_AS_TORCHRUN")):
            with self.subTest(out_of_it):
                out, err = self.run_it("env", *out_of_it, sys.executable, "-m", "torch.distributed.run", "worker.py")
                self.assertEqual((out.split()[0][:6], err), ("python", ""))

    def test_the_users_own_python_path_and_sitecustomize(self):
        (self.folder / "own").mkdir()
        (self.folder / "own/sitecustomize.py").write_text("print('of the user')\n")
        self.environment["PYTHONPATH"] = str(self.folder / "own")
        out, _ = self.run_it(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "worker.py")
        self.assertEqual(out.count("of the user"), 3)
        self.are_workers(out)

    def test_the_variable_with_an_installed_package(self):
        site = self.folder / "site"
        shutil.copytree(PACKAGE / "ddprun", site / "ddprun")
        (site / "ddprun-0.dist-info").mkdir()
        (site / "ddprun-0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: ddprun\nVersion: 0\n")
        (site / "ddprun-0.dist-info/entry_points.txt").write_text("[torch.backends]\nddprun = ddprun._torch_autoload:install\n")
        (self.folder / "bin/ddprun").symlink_to(DDPRUN)
        self.environment |= {"PYTHONPATH": str(site), "PATH": f"{self.folder / 'bin'}:{self.environment['PATH']}"}
        for value, agent, words in (("1", "ddprun", ""), ("true", "ddprun", ""), (str(DDPRUN), "ddprun", ""), ("0", "python", ""),
                                    ("false", "python", ""), ("no", "python", "DDPRUN_AS_TORCHRUN=no: give 1 (on), 0 (off), or the path")):
            with self.subTest(value):
                self.environment["DDPRUN_AS_TORCHRUN"] = value
                done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "worker.py"], env=self.environment,
                                      cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
                self.assertEqual((done.returncode, done.stdout.count(agent)), (0, 2), done.stdout + done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual("torchrun is not ddprun" in done.stderr, words != "", done.stderr)


class Commands(InFolder):
    def test_it_becomes_the_command(self):
        process = self.start("sh", "-c", "echo $$; kill -TERM $$")
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual((int(out), process.returncode), (process.pid, -signal.SIGTERM))

    def test_the_folder_of_a_command_that_is_killed_is_removed(self):
        process = self.start("sh", "-c", "echo; exec sleep 1000")
        process.stdout.readline()
        self.assertEqual(len(list(self.temporary.iterdir())), 1)
        process.kill()
        process.communicate(timeout=LIMIT_S)
        self.nothing_is_left()

    def test_what_cannot_be_executed(self):
        for command, code, words in (((), 2, "--as-torchrun needs a command"), (("no-such",), 127, "no command no-such was found"),
                                     (("worker.py",), 126, "--as-torchrun -- python worker.py")):
            with self.subTest(command):
                out, err = self.run_it(*command, code=code)
                self.assertEqual((out, err.count("\n")), ("", 1))
                self.assertIn(words, err)


@unittest.skipUnless(has("torch"), "without the package torch")
class Library(InFolder):
    def out_of(self, *arguments, **more):
        return self.run_it(sys.executable, "library.py", *arguments, **more)[0].splitlines()

    def test_a_function(self):
        self.assertEqual(self.out_of("function"), ["{0: (5, 'ddprun'), 1: (5, 'ddprun')}"])

    def test_a_program(self):
        self.assertEqual(sorted(self.out_of("program")), ["local rank 0", "local rank 1", "{0: None, 1: None}"])

    def test_options_about_programs_are_for_torchruns_lines(self):
        for option in ("--local-rank-arg", "--run-path", "--no-python"):
            with self.subTest(option):
                self.assertEqual(self.out_of("function", options=[option]), ["{0: (5, 'ddprun'), 1: (5, 'ddprun')}"])
        self.are_workers("\n".join(self.out_of("legacy", options=["--local-rank-arg"])), "--local-rank=N a")

    def test_failures_are_torchs(self):
        self.assertEqual(self.out_of("raises")[-1], "1 1 1 True True")
        self.assertEqual(self.out_of("python")[-1], "1 1 3 True False")

    def test_log_plug_ins_are_refused(self):
        self.assertRegex(self.out_of("refused")[0], "and was given a Own")

    def test_a_signal_is_passed_on_and_awaited(self):
        _, out, err = self.signalled(signal.SIGTERM, "stopped", "ready")
        self.assertEqual(out, "stopped by SIGTERM True\n", err)

    def test_a_preemption_is_passed_on(self):
        code, _, err = self.signalled(signal.SIGUSR1, "leaves", "ready-0", "ready-1", options=["--preempt-signal=SIGUSR1"])
        self.assertEqual(code, 113, err)

    def signalled(self, number, what, *ready, **more):
        process = self.start(sys.executable, "library.py", what, **more)
        deadline = time.monotonic() + LIMIT_S
        while not all((self.folder / name).exists() for name in ready):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err


class Frameworks(InFolder):
    @unittest.skipUnless(has("accelerate"), "without the package accelerate")
    def test_accelerate(self):
        self.environment["ACCELERATE_USE_CPU"] = "1"
        launch = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "worker.py")
        self.workers(*launch, "a", arguments="a")
        self.workers(*launch, "fail", arguments="fail", code=1)

    @unittest.skipUnless(has("lightning"), "without the package lightning")
    def test_lightning(self):
        (self.folder / "fit.py").write_text(textwrap.dedent("""
            import lightning, os, torch
            from lightning.pytorch.demos.boring_classes import BoringModel
            trainer = lightning.Trainer(max_steps=2, accelerator="cpu", devices=2, strategy="ddp", logger=False, barebones=True)
            trainer.fit(BoringModel())
            exec(open("worker.py").read())
        """))
        self.workers("torchrun", "--nproc-per-node=2", "fit.py")

    @unittest.skipUnless(has("torchx"), "without the package torchx, which scripts/setup does not install")
    def test_torchx(self):
        from importlib.metadata import entry_points
        [main] = entry_points(group="console_scripts", name="torchx")
        (self.folder / "torchx_main.py").write_text(f"from {main.module} import main\nmain()\n")
        _, err = self.run_it(sys.executable, "torchx_main.py", "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "worker.py")
        self.assertEqual(len([line for line in err.splitlines() if "]:ddprun " in line]), 2, err)  # its prefix is before them

    @unittest.skipUnless(has("deepspeed"), "without the package deepspeed, which scripts/setup does not install")
    def test_deepspeeds_launcher_is_left_alone(self):
        code = "from deepspeed.launcher.runner import main; main()"
        out, _ = self.run_it(sys.executable, "-c", code, "--num_gpus=2", "worker.py")
        self.assertEqual(sorted(line.split()[0][:6] for line in out.splitlines() if "local_rank=" in line and line[0] != "["), ["python"] * 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
