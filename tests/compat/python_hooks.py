"""What ddprun brings into Python programs that know nothing of it: steps are shown, and the program sees nothing of it.

  python_hooks.py DDPRUN

Most programs here get a stand-in for torch.optim, which has the hook of PyTorch's and starts at once; the last ones
train with PyTorch. DDPRUN_TEST_PYTHON names another Python for the programs with the stand-in.
"""
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("DDPRUN_TEST_PYTHON", "/usr/bin/python3")

STAND_IN = '''
hooks = {}


def register_optimizer_step_post_hook(hook):
    hooks[id(hook)] = hook


class Optimizer:
    def __init__(self, has_number=False, state=None):
        self.has_number = has_number
        self.state = {} if state is None else state

    def step(self):
        if self.has_number:
            self.state.setdefault("weight", {"step": 0})["step"] += 1
        for hook in hooks.values():
            hook(self, (), {})
'''


class Programs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        package = self.folder / "with_torch/torch/optim"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from torch.optim.optimizer import Optimizer\n")
        (package.parent / "__init__.py").write_text("from torch import optim\n")
        (package / "optimizer.py").write_text(STAND_IN)

    def run_program(self, text, *options, code=0, python=PYTHON, **environment):
        """The events, stdout and stderr of the program."""
        script = self.folder / "program.py"
        script.write_text(textwrap.dedent(text))
        events = self.folder / "events"
        events.unlink(missing_ok=True)
        path = {"PYTHONPATH": str(self.folder / "with_torch")} if python == PYTHON else {}
        done = subprocess.run(
            [DDPRUN, f"--events={events}", *options, script], capture_output=True, text=True, timeout=300,
            cwd=self.folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": python, **path, **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        return [json.loads(line) for line in events.read_text().splitlines()], done.stdout, done.stderr

    def progress_of(self, text, **more):
        """What the agent knows of the worker, which must end with code 3."""
        events, _, err = self.run_program(text, code=3, **more)
        [ended] = [each for each in events if each["event"] == "worker_exited"]
        return ended["progress"], err


class Hooks(Programs):
    def test_steps_are_counted(self):
        progress, _ = self.progress_of("""
            import sys, torch
            optimizer = torch.optim.Optimizer()
            for _ in range(17):
                optimizer.step()
            sys.exit(3)
            """)
        self.assertEqual((progress["step"], progress["step_kind"], progress["phase"]), (17, "counted", "running"))

    def test_the_number_in_the_state_is_shown(self):
        progress, _ = self.progress_of("""
            import sys, torch
            optimizer = torch.optim.Optimizer(has_number=True, state={"weight": {"step": 400}})
            for _ in range(17):
                optimizer.step()
            sys.exit(3)
            """)
        self.assertEqual((progress["step"], progress["step_kind"]), (417, "optimizer"))

    def test_a_step_before_the_checkpoint_is_read_does_not_count(self):
        progress, _ = self.progress_of("""
            import sys, torch
            optimizer = torch.optim.Optimizer(has_number=True)
            optimizer.step()
            optimizer.state = {"weight": {"step": 400}}
            for _ in range(17):
                optimizer.step()
            sys.exit(3)
            """)
        self.assertEqual((progress["step"], progress["step_kind"]), (417, "optimizer"))

    def test_the_optimizer_that_steps_first_counts_until_it_is_gone(self):
        progress, _ = self.progress_of("""
            import sys, torch
            one, other = torch.optim.Optimizer(), torch.optim.Optimizer()
            for _ in range(5):
                one.step()
                other.step()
                other.step()
            del one
            other.step()
            sys.exit(3)
            """)
        self.assertEqual(progress["step"], 6)

    def test_a_program_that_reports_has_its_own_numbers(self):
        progress, _ = self.progress_of("""
            import sys, torch
            from ddprun import progress
            optimizer = torch.optim.Optimizer()
            for step in range(1, 9):
                optimizer.step()
                optimizer.step()
                progress.report(100 + step, total=1000, loss=0.5)
            optimizer.step()
            sys.exit(3)
            """, PYTHONPATH=f"{self.folder}/with_torch:{SOURCE}/worker_lib/python")
        self.assertEqual((progress["step"], progress["step_kind"], progress["total_steps"], progress["values"]),
                         (108, "program", 1000, {"loss": 0.5}))

    def test_a_module_of_the_programs_own_may_be_called_ddprun(self):
        (self.folder / "ddprun.py").write_text("mine = 1\n")
        progress, _ = self.progress_of("""
            import ddprun, sys, torch
            torch.optim.Optimizer().step()
            import ddprun
            sys.exit(2 + ddprun.mine)
            """)
        self.assertEqual(progress["step"], 1)

    def test_children_do_not_count(self):
        progress, _ = self.progress_of("""
            import os, sys, torch
            optimizer = torch.optim.Optimizer()
            optimizer.step()
            if os.fork() == 0:
                for _ in range(9):
                    optimizer.step()
                os._exit(0)
            os.wait()
            optimizer.step()
            sys.exit(3)
            """)
        self.assertEqual(progress["step"], 2)

    def test_what_goes_wrong_is_one_line(self):
        progress, err = self.progress_of("""
            import sys, torch
            class State(dict):
                def values(self):
                    raise RuntimeError("no such thing")
            optimizer = torch.optim.Optimizer(state=State())
            for _ in range(3):
                optimizer.step()
            sys.exit(3)
            """)
        self.assertIsNone(progress)
        line = "ddprun: the steps of this worker are not shown: RuntimeError: no such thing\n"
        self.assertEqual(err.partition("ddprun: /")[0], line)

    def test_they_can_be_turned_off(self):
        progress, _ = self.progress_of("""
            import sys, torch
            torch.optim.Optimizer().step()
            sys.exit(3)
            """, DDPRUN_PYTHON_HOOKS="0")
        self.assertIsNone(progress)

    def test_nccl_finds_a_plugin_where_waits_have_a_limit(self):
        package = self.folder / "with_torch/torch/distributed"
        package.mkdir()
        (package / "__init__.py").write_text("from torch.distributed import distributed_c10d\n")
        (package / "distributed_c10d.py").write_text("def _new_process_group_helper(*_):\n    pass\n")
        for options, variables, said in ((["--hang-timeout=60"], {}, "True"), (["--hang-timeout=auto"], {}, "True"), ([], {}, "None"),
                                         (["--hang-timeout=60"], {"NCCL_PROFILER_PLUGIN": "theirs"}, "theirs")):
            with self.subTest(options=options, variables=variables):
                _, out, err = self.run_program("""
                    import ctypes, os
                    import torch.distributed
                    path = os.environ.get("NCCL_PROFILER_PLUGIN")
                    os.closerange(3, 1024)  # NCCL looks for it with the first communicator
                    print(path if path in (None, "theirs") else hasattr(ctypes.CDLL(path), "ncclProfiler_v5"))
                    assert "DDPRUN_NCCL_RECORD" not in os.environ
                    """, *options, **variables)
                self.assertEqual(out.strip(), said, err)

    def test_a_program_sees_nothing_of_them(self):
        there = self.folder / "there"
        there.mkdir()
        for path in "", str(there):
            for own in False, True:
                site = there / "sitecustomize.py"
                site.unlink(missing_ok=True)
                if own:
                    site.write_text("import os\nos.environ['SITE'] = __file__ + __spec__.origin\n")
                what_it_sees = """
                    import os, subprocess, sys
                    site = sys.modules.get("sitecustomize")
                    names = [f"/proc/self/fd/{fd}" for fd in range(3, 64)]
                    fds = [os.readlink(name) for name in names if os.path.lexists(name)]
                    finders = [each for each in sys.meta_path if type(each).__name__ != "_Package"]  # it brings ddprun itself
                    print(sys.path, finders[-3:], sys.argv, getattr(sys, "orig_argv", None),
                          {name: os.environ.get(name) or None for name in ("PYTHONPATH", "SITE")},
                          sorted(name for name in sys.modules if "ddprun" in name), site and site.__file__,
                          [name.split(":")[0] for name in fds if not any(
                              own in name for own in ("ddprun-link", "ddprun-python-stacks", "socket"))],
                          __name__, __file__, sys.path_importer_cache.keys())
                    child = [sys.executable, "-c", "import sys; print(sys.path)"]
                    print(subprocess.run(child, capture_output=True, text=True))
                    """
                _, with_hooks, err = self.run_program(what_it_sees, PYTHONPATH=path)
                _, without, _ = self.run_program(what_it_sees, PYTHONPATH=path, DDPRUN_PYTHON_HOOKS="0")
                self.assertEqual(with_hooks, without)
                self.assertEqual(err, "")
                self.assertEqual("'SITE': None" not in with_hooks, bool(path and own), with_hooks)

    def test_a_program_without_the_package_gets_ddpruns(self):
        _, out, err = self.run_program("""
            import os, sys
            assert not any("/proc/" in entry for entry in sys.path), sys.path
            os.closerange(3, 64)  # as daemons do: no descriptor here is needed
            import ddprun.progress
            ddprun.progress.report(1, 2)
            print(type(ddprun.__spec__.loader).__name__)
            """)
        self.assertEqual(out, "zipimporter\n", err)

    def test_processes_that_multiprocessing_spawns_have_it_too(self):
        for method in "spawn", "forkserver":
            with self.subTest(method=method):
                _, out, err = self.run_program(f"""
                    import multiprocessing
                    import ddprun.progress

                    def work():
                        ddprun.progress.report(1, 2)
                        print("worked", flush=True)

                    if __name__ == "__main__":
                        child = multiprocessing.get_context("{method}").Process(target=work)
                        child.start()
                        child.join()
                    """)
                self.assertEqual(out, "worked\n", err)

    def test_a_look_at_the_main_thread_harms_no_program_whose_threads_come_and_go(self):
        # With the stacks of all threads it crashes within some thousand looks.
        _, out, _ = self.run_program('''
            import os, signal, threading, time

            def begin_and_end():
                while True:
                    each = threading.Thread(target=sum, args=([1],))
                    each.start()
                    each.join()

            for _ in range(2):
                threading.Thread(target=begin_and_end, daemon=True).start()

            def look():
                for _ in range(10_000):
                    signal.pthread_kill(threading.main_thread().ident, 50)
                    time.sleep(0.0002)

            looks = threading.Thread(target=look)
            looks.start()
            while looks.is_alive():
                time.sleep(0.01)
            memory = [each for each in range(256) if os.path.islink(f"/proc/self/fd/{each}")
                      and "ddprun-python-stacks" in os.readlink(f"/proc/self/fd/{each}")]
            with open(f"/proc/self/fd/{memory[0]}") as stacks:
                print(stacks.read().count("Stack (most recent call first):") > 5_000, flush=True)
            os._exit(0)
        ''')
        self.assertEqual(out, "True\n")

    def test_a_package_of_the_programs_own_wins_wherever_it_is(self):
        own = self.folder / "own/ddprun"
        own.mkdir(parents=True)
        (own / "__init__.py").write_text("version = 'theirs'\n")
        for variables, before in (({"PYTHONPATH": str(own.parent)}, ""), ({}, f"sys.path.append({str(own.parent)!r})")):
            with self.subTest(before=before):
                _, out, err = self.run_program(f"""
                    import sys
                    {before}
                    import ddprun
                    print(ddprun.version, any("/proc/" in entry for entry in sys.path))
                    """, **variables)
                self.assertEqual(out, "theirs False\n", err)

    def test_what_traces_the_program_sees_no_file_that_is_not_there(self):
        # As coverage.py does, which fails when it cannot read a file.
        self.run_program("""
            import os, sys
            files = set()
            def trace(frame, event, argument):
                files.add(frame.f_code.co_filename)
                return trace
            sys.settrace(trace)
            from torch.optim import Optimizer
            Optimizer().step()
            sys.settrace(None)
            assert any("ddprun" in each for each in files), files
            missing = [each for each in files if not each.startswith("<") and not os.path.exists(each)]
            assert not missing, missing
            """)

    def test_a_users_sitecustomize_that_fails_is_told_as_without_them(self):
        there = self.folder / "there"
        there.mkdir()
        (there / "sitecustomize.py").write_text("import no_such_module\n")
        _, _, with_hooks = self.run_program("pass", PYTHONPATH=str(there))
        _, _, without = self.run_program("pass", PYTHONPATH=str(there), DDPRUN_PYTHON_HOOKS="0")
        self.assertIn("no_such_module", without)
        self.assertEqual(with_hooks, without)

    def test_a_python_without_the_site_module_runs_as_ever(self):
        script = self.folder / "isolated.py"
        script.write_text("print('here')\n")
        done = subprocess.run([DDPRUN, "--no-python", PYTHON, "-I", script], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, "here\n"), done.stderr)

    def test_a_restart_counts_until_the_step_after(self):
        events, _, err = self.run_program("""
            import os, signal, torch
            round = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            optimizer = torch.optim.Optimizer(has_number=True, state={"weight": {"step": 20 * round}})
            for step in range(31):
                optimizer.step()
            if round == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            """, "--max-restarts=1")
        [recovered] = [each for each in events if each["event"] == "recovered"]
        self.assertEqual((recovered["until"], recovered["steps_repeated"]), ("step_after", 11))
        self.assertRegex(err, r"1 restart cost .* of it: .* to the first step, .* for 11 steps again; goodput [0-9.]+ % since the first step\n")

    def test_a_restart_of_counted_steps_says_what_is_not_known(self):
        events, _, err = self.run_program("""
            import os, signal, torch
            optimizer = torch.optim.Optimizer()
            for step in range(31):
                optimizer.step()
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            """, "--max-restarts=1")
        [recovered] = [each for each in events if each["event"] == "recovered"]
        self.assertEqual((recovered["until"], recovered["steps_repeated"]), ("first_step", None))
        self.assertIn("; how many steps were repeated is not known; goodput ", err)


try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "there is no PyTorch here")
class WithPyTorch(Programs):
    TRAINING = """
        import sys, torch
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
        def step():
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        {more}
        for _ in range(7):
            step()
        sys.exit(3)
        """

    def trained(self, optimizer, more="pass"):
        text = self.TRAINING.format(optimizer=optimizer, more=more)
        progress, err = self.progress_of(text, python=sys.executable)
        self.assertNotIn("of ddprun>", err)
        self.assertNotIn("not shown", err)
        return progress["step"], progress["step_kind"]

    def test_adamw_has_its_steps_in_its_state(self):
        self.assertEqual(self.trained("AdamW"), (7, "optimizer"))

    def test_sgd_has_none(self):
        self.assertEqual(self.trained("SGD"), (7, "counted"))

    def test_a_compiled_step_counts(self):
        self.assertEqual(self.trained("AdamW", "step = torch.compile(step, backend='eager')"), (7, "optimizer"))


if __name__ == "__main__":
    unittest.main()
