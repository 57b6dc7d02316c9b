"""`python -m ddprun` is the program ddprun of the same environment; ddprun.launch() calls a function in workers and returns what
they return.

  python_launch.py DDPRUN [TEST…]

With DDPRUN_TEST_FULL=1 a result of 1 GB is returned, else one of 200 MB.
"""
import contextlib
import importlib.util
import itertools
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import venv
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
PACKAGE = Path(__file__).resolve().parents[2] / "worker_lib/python"
FULL = os.environ.get("DDPRUN_TEST_FULL")
LIMIT_S = 120
HAS_CLOUDPICKLE = importlib.util.find_spec("cloudpickle") is not None

sys.path.insert(0, str(PACKAGE))
import ddprun  # noqa: E402

# Functions of a module.
WORK = '''
import atexit, os, pathlib, signal, sys, threading, time

RANK = int(os.environ.get("RANK", -1))


class Strange(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def add(one, two=0):
    return one + two + RANK


def variables():
    return {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHON_EXEC", "DDPRUN_TERMINATION_LOG")}


def about():
    return sys.argv, os.getcwd(), sys.executable, sys.path


def await_file(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.005)  # another process's file


def fail(what):
    """Rank 1, and nothing else: the other ranks wait until they are stopped."""
    if RANK != 1:
        time.sleep(1000)
    if what == "raises":
        try:
            {}["inner"]
        except KeyError as error:
            raise ValueError("lr must be positive") from error
    if what == "strange":
        raise Strange(1, 2)
    if what == "local":
        class Local(Exception):
            pass
        raise Local("of a function")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "exit":
        sys.exit(3)
    if what == "words":
        sys.exit("no data")
    if what == "_exit":
        os._exit(0)
    if what == "lock":
        return threading.Lock()
    os.kill(os.getpid(), getattr(signal, what))


def kill_agent():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def end_early(how):
    how == "sys.exit" and sys.exit()
    how == "os._exit" and os._exit(0)


def round_of(folder):
    """In the first round rank 0 fails when rank 1 has returned."""
    round = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if RANK == 1:
        atexit.register(pathlib.Path(folder, "returned").touch)
    elif round == "0":
        await_file(pathlib.Path(folder, "returned"))
        raise ValueError("in the first round")
    return round


def meet(folder, mine, other):
    """Two jobs that run at once."""
    pathlib.Path(folder, mine).touch()
    await_file(pathlib.Path(folder, other))
    return mine


def big(size, of, folder):
    """Says at its end how much memory this process has had."""
    def say():
        [peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
        pathlib.Path(folder, "peak").write_text(peak)
    if of == "array":
        import numpy
        atexit.register(say)
        return numpy.ones(size // 8)
    atexit.register(say)
    return b"x" * size


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


def returns(what):
    return Unreadable()


def all_reduce(fails=False):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if fails and RANK == 1:
        raise ValueError("of rank 1")
    total = torch.ones(2)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total


def nested():
    import ddprun
    return ddprun.launch(add, (10 * RANK,), nproc_per_node=2)
'''


def processes_of(folder):
    """The command lines of all processes that name the folder, but for this one's."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and each.parent.name != str(os.getpid()):
                found.append(line)
    return found


class InFolder(unittest.TestCase):
    """Temporary files of launch() are in `temporary`, which is empty at the end of each test, and no process is left."""

    def setUp(self):
        whole = tempfile.TemporaryDirectory()
        self.addCleanup(whole.cleanup)
        self.folder = Path(whole.name)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        (self.folder / "work.py").write_text(WORK)
        hidden = ("PET_", "TORCHELASTIC_", "DDPRUN_", "PYTHON_EXEC", "RANK", "WORLD_SIZE", "VIRTUAL_ENV", "CONDA_PREFIX")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.environment |= {"PATH": f"{DDPRUN.parent}:/usr/bin:/bin", "PYTHONPATH": str(PACKAGE), "TMPDIR": str(self.temporary),
                             "OMP_NUM_THREADS": "1"}
        self.addCleanup(self.nothing_is_left)

    def nothing_is_left(self):
        self.assertEqual(list(self.temporary.iterdir()), [])
        self.assertEqual(processes_of(self.temporary), [])

    def script(self, text, name="script.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def run_python(self, *arguments, **more):
        return subprocess.run([sys.executable, *arguments], env=self.environment, cwd=self.folder, capture_output=True, text=True,
                              timeout=LIMIT_S, **more)

    def out_of(self, *arguments, **more):
        done = self.run_python(*arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


class Launch(InFolder):
    """From this process."""

    def setUp(self):
        super().setUp()
        was, its_path, tempfile.tempdir = dict(os.environ), list(sys.path), None
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path.insert(0, str(self.folder))
        import work
        self.work = work
        def put_back():
            os.environ.clear()
            os.environ.update(was)
            sys.path[:], tempfile.tempdir = its_path, None
            del sys.modules["work"]
        self.addCleanup(put_back)

    def launch(self, f, *args, nproc_per_node=2, **options):
        return ddprun.launch(f, args, nproc_per_node=nproc_per_node, **options)

    def fails(self, kind, f, *args, **options):
        with self.assertRaises(kind) as failed:
            self.launch(f, *args, **options)
        self.assertIs(type(failed.exception), kind)
        self.nothing_is_left()
        return failed.exception

    def test_what_each_rank_returns(self):
        self.assertEqual(ddprun.launch(self.work.add, [10], {"two": 5}, nproc_per_node=3), {0: 15, 1: 16, 2: 17})

    def test_a_worker_is_as_the_caller(self):
        argv, folder, executable, path = self.launch(self.work.about, nproc_per_node=1)[0]
        self.assertEqual((argv, folder, executable, path), (sys.argv, os.getcwd(), sys.executable, sys.path))

    def test_a_caller_with_variables_of_a_worker(self):
        os.environ.update(RANK="7", WORLD_SIZE="9", LOCAL_RANK="3", LOCAL_WORLD_SIZE="5", MASTER_ADDR="nowhere", MASTER_PORT="1")
        expected = {rank: {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "PYTHON_EXEC": None,
                           "DDPRUN_TERMINATION_LOG": None} for rank in range(2)}
        self.assertEqual(self.launch(self.work.variables), expected)
        os.environ.update(PYTHON_EXEC="/of/the/caller")
        self.assertEqual(self.launch(self.work.variables)[0]["PYTHON_EXEC"], "/of/the/caller")

    def test_options_about_programs_are_not_for_a_function(self):
        os.environ.update(DDPRUN_LOCAL_RANK_ARG="1", PET_NO_PYTHON="1")
        self.assertEqual(self.launch(os.getenv, "DDPRUN_LOCAL_RANK_ARG"), {0: "1", 1: "1"})
        self.assertIn("there is no --local-rank-arg", str(self.fails(ValueError, self.work.add, 1, local_rank_arg=True)))

    def test_the_exception_of_the_rank_that_failed_first(self):
        error = self.fails(ValueError, self.work.fail, "raises")
        self.assertEqual(str(error), "lr must be positive")
        its = error.__cause__
        self.assertIs(type(its), ddprun.LaunchError)
        self.assertEqual((its.rank, its.exit_code), (1, 1))
        self.assertRegex(str(its), r"(?s)^rank 1 failed first:\n\nTraceback .*KeyError: 'inner'\n.*in fail\n.*ValueError: lr must be")
        self.assertNotIn("launched.py", str(its))

    def test_ranks_that_fail_in_a_collective_because_of_it_are_not_the_cause(self):
        error = self.fails(ValueError, self.work.all_reduce, True, nproc_per_node=3)
        self.assertEqual(str(error), "of rank 1")

    def test_tensors(self):
        results = self.launch(self.work.all_reduce)
        self.assertEqual([results[rank].tolist() for rank in (0, 1)], [[2, 2], [2, 2]])

    def test_exceptions_that_cannot_be_pickled_or_unpickled(self):
        for what, word in (("strange", "Strange: 1 and 2"), ("local", "Local: of a function"), ("interrupt", "KeyboardInterrupt")):
            with self.subTest(what):
                error = self.fails(ddprun.LaunchError, self.work.fail, what)
                self.assertRegex(str(error), r"(?s)^rank 1 failed first:\n\nTraceback ")
                self.assertIn(word, str(error))
                self.assertEqual(error.rank, 1)

    def test_a_worker_that_is_killed(self):
        for name, number in (("SIGKILL", 9), ("SIGSEGV", 11), ("SIGTERM", 15)):
            with self.subTest(name):
                error = self.fails(ddprun.LaunchError, self.work.fail, name)
                self.assertRegex(str(error), rf"rank 1 \(pid \d+\) was killed by {name}")
                self.assertEqual((error.rank, error.exit_code), (1, 128 + number))

    def test_a_ddprun_that_is_killed(self):
        with self.assertRaises(ddprun.LaunchError) as failed:
            self.launch(self.work.kill_agent)
        self.assertEqual((str(failed.exception), failed.exception.exit_code), ("ddprun was killed by signal 9", 137))
        deadline = time.monotonic() + LIMIT_S
        while processes_of(self.temporary):  # its keeper kills them
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_exit_codes_of_workers(self):
        error = self.fails(ddprun.LaunchError, self.work.fail, "exit")
        self.assertEqual((error.rank, error.exit_code), (1, 3))
        self.assertIn("SystemExit: 3", str(error))
        error = self.fails(ddprun.LaunchError, self.work.fail, "words")
        self.assertEqual((error.rank, error.exit_code), (1, 1))
        self.assertIn("no data", str(error))
        self.assertEqual(self.launch(self.work.end_early, "sys.exit"), {0: None, 1: None})
        error = self.fails(ddprun.LaunchError, self.work.end_early, "os._exit")
        self.assertEqual(str(error), "rank 0 has ended with exit code 0 before its function returned")

    def test_results_that_cannot_be_pickled_or_unpickled(self):
        error = self.fails(pickle.PicklingError, self.work.fail, "lock")
        self.assertRegex(str(error), "^what rank 1 returned, a lock, cannot be pickled: .*lock")
        error = self.fails(ddprun.LaunchError, self.work.returns, "what cannot be read")
        self.assertRegex(str(error), "^what rank 0 returned cannot be unpickled: ValueError: .*no number")

    def test_a_large_result_is_in_memory_once(self):
        import numpy
        size = 1 << 30 if FULL else 200 << 20
        for of, most in (("bytes", 1.2), ("array", 2.2)):
            with self.subTest(of):
                Path("/proc/self/clear_refs").write_text("5")
                before = self.kib("VmRSS")
                result = self.launch(self.work.big, size, of, str(self.folder), nproc_per_node=1)[0]
                self.assertEqual(len(result), size if of == "bytes" else size // 8)
                self.assertTrue(result[:10] == b"x" * 10 if of == "bytes" else numpy.all(result == 1))
                self.assertLess((self.kib("VmHWM") - before) * 1024, 1.2 * size)
                self.assertLess(int((self.folder / "peak").read_text()) * 1024, most * size + (60 << 20))
                del result

    @staticmethod
    def kib(what):
        [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)]
        return int(line.split()[1])

    def test_arguments_are_sent_by_a_file(self):
        self.assertEqual(self.launch(self.work.add, 1 << (8 << 23)), {rank: (1 << (8 << 23)) + rank for rank in (0, 1)})

    def test_after_a_restart_the_results_are_those_of_the_last_round(self):
        self.assertEqual(self.launch(self.work.round_of, str(self.folder), max_restarts=1), {0: "1", 1: "1"})
        (self.folder / "returned").unlink()
        error = self.fails(ValueError, self.work.round_of, str(self.folder))
        self.assertEqual(str(error), "in the first round")

    def test_workers_of_standbys(self):
        self.assertEqual(self.launch(self.work.round_of, str(self.folder), max_restarts=1, standby="auto"), {0: "1", 1: "1"})

    def test_several_threads_at_once(self):
        results = {}

        def run(mine, other):
            results[mine] = self.launch(self.work.meet, str(self.folder), mine, other)
        threads = [threading.Thread(target=run, args=each) for each in (("one", "two"), ("two", "one"))]
        for each in threads:
            each.start()
        for each in threads:
            each.join(LIMIT_S)
        self.assertEqual(results, {"one": {0: "one", 1: "one"}, "two": {0: "two", 1: "two"}})

    def test_a_worker_that_launches(self):
        self.assertEqual(self.launch(self.work.nested), {0: {0: 0, 1: 1}, 1: {0: 10, 1: 11}})

    def test_options(self):
        told = self.folder / "events"
        self.launch(self.work.add, 1, events=str(told), log_dir=self.folder / "logs", redirects={0: 3, 1: 1}, standalone=True,
                    local_ranks_filter=[0, 1], max_restarts=0, monitor_interval=0.5, rdzv_conf={"join_timeout": 60}, role=None,
                    kill_orphans=False)
        self.assertTrue((self.folder / "logs").is_dir())
        lines = told.read_text().splitlines()
        self.assertIn('"event":"job_started"', lines[0])
        self.assertIn('"event":"finished"', lines[-1])
        os.environ["DDPRUN_EVENTS"] = str(told)
        self.launch(self.work.add, 1)
        self.assertEqual(len(told.read_text().splitlines()), 2 * len(lines))

    def test_what_a_rank_has_raised_before_it_was_replaced_does_not_count(self):
        from ddprun import launching
        events = [{"event": "round_started", "round": 0, "workers": [{"rank": 0}, {"rank": 1}]}, {"event": "finished", "cause": {"rank": 1}}]
        replaced = {"event": "restarted", "how": "replaced", "monotonic_us": 5_000_000}
        for rank, noted_at in ((0, 4.0), (1, 9.0)):
            launching.dump((noted_at, "its text", pickle.dumps(ValueError(rank))), launching.file_of(self.folder, "error", 0, rank))
        for expected, each in ((0, events), (1, [events[0], replaced, events[1]])):
            told = launching._Told("".join(json.dumps(event) + "\n" for event in each), "")
            self.assertEqual(launching._failure(self.folder, 1, told).args, (expected,))

    def test_lists_are_joined_as_ddprun_reads_them(self):
        from ddprun import launching
        options = {"duplicate_stdout_filters": ["a,b", "c"], "final_exit_codes": (2, "SIGSEGV"), "tee": {0: 3}, "t": "1",
                   "module": True}
        self.assertEqual(launching._options(options), ["--duplicate-stdout-filters=a,,b,c", "--final-exit-codes=2,SIGSEGV", "--tee=0:3",
                                                       "--t=1", "--module"])

    def test_wrong_arguments_are_one_sentence(self):
        add = self.work.add
        for kind, words, call in (
                (TypeError, "launch() calls a function, and was given a str", lambda: ddprun.launch("add", nproc_per_node=1)),
                (TypeError, "args of launch() is a tuple or a list, as in args=(5,)", lambda: ddprun.launch(add, 5, nproc_per_node=1)),
                (TypeError, "args of launch() is a tuple or a list, as in args=('ab',)", lambda: ddprun.launch(add, "ab", nproc_per_node=1)),
                (TypeError, "kwargs of launch() is a dict", lambda: ddprun.launch(add, (), {1: 2}, nproc_per_node=1)),
                (TypeError, "nproc_per_node", lambda: ddprun.launch(add)),
                (TypeError, "nproc_per_node of launch() is a number or a word", lambda: ddprun.launch(add, nproc_per_node=True)),
                (TypeError, "launch() cannot give ddprun a set as --tee", lambda: ddprun.launch(add, nproc_per_node=1, tee={1})),
                (ValueError, "unknown option --foo;", lambda: ddprun.launch(add, nproc_per_node=1, foo=3)),
                (ValueError, "--max-restarts", lambda: ddprun.launch(add, nproc_per_node=1, max_restarts=-1)),
                (ValueError, "--max-restarts needs a value", lambda: ddprun.launch(add, nproc_per_node=1, max_restarts=True)),
                (ValueError, "--standalone takes no value", lambda: ddprun.launch(add, nproc_per_node=1, standalone="yes")),
                (ValueError, "--no-python", lambda: ddprun.launch(add, nproc_per_node=1, no_python=True)),
                (ValueError, "--nproc-per-node", lambda: ddprun.launch(add, nproc_per_node="many")),
                (ValueError, "ddprun has started no workers", lambda: ddprun.launch(add, nproc_per_node=1, version=True)),
                (FileNotFoundError, "No such file or directory", lambda: ddprun.launch(add, nproc_per_node=1, events="/no/file")),
                (pickle.PicklingError, "lock", lambda: ddprun.launch(add, (threading.Lock(),), nproc_per_node=1))):
            with self.subTest(words), self.assertRaises(kind) as refused:
                call()
            self.assertIn(words, str(refused.exception))
            self.assertEqual(len(str(refused.exception).splitlines()), 1)
            self.nothing_is_left()

    def test_without_the_program(self):
        os.environ["PATH"] = "/usr/bin:/bin"
        error = self.fails(FileNotFoundError, self.work.add, 1)
        self.assertRegex(str(error), r"^the program ddprun is neither in .* nor on PATH; .*pip install")

    def test_two_nodes(self):
        """Each calls launch() and gets its own ranks; also the other one learns why a rank failed."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.assertEqual(self.on_two_nodes(port, self.work.add, 5), [{0: 5, 1: 6}, {2: 7, 3: 8}])
        own, other = reversed(self.on_two_nodes(port, self.work.fail, "raises", nproc_per_node=1))
        self.assertEqual((type(own), str(own)), (ValueError, "lr must be positive"))
        self.assertIs(type(other), ddprun.LaunchError)
        self.assertEqual((other.rank, other.exit_code), (1, 1))
        self.assertRegex(str(other), r"(?s)rank 1 .*Traceback.*in fail.*ValueError: lr must be positive")

    def on_two_nodes(self, port, f, *args, nproc_per_node=2):
        results = [None, None]

        def run(node):
            try:
                results[node] = self.launch(f, *args, nproc_per_node=nproc_per_node, nnodes=2, node_rank=node, master_addr="127.0.0.1",
                                            master_port=port, no_token=True)
            except Exception as error:
                results[node] = error
        threads = [threading.Thread(target=run, args=(node,)) for node in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(LIMIT_S)
        return results


IN_SCRIPT = '''
import ddprun, os, sys

sys.stdout.write(f"imported as {__name__}\\n")  # one call of the system, as others write, too
sys.stdout.flush()
SIZE = 5
if __name__ == "__main__":
    SIZE = 7


class Its:
    def __init__(self, value):
        self.value = value


def f(given):
    return Its((given.value, SIZE, int(os.environ["RANK"])))


if __name__ == "__main__":
    results = ddprun.launch(f, (Its(3),), nproc_per_node=2)
    print([type(each) is Its and each.value for each in results.values()])
'''

NOTEBOOK = '''
import sys


def run_cell(number, text):
    exec(compile(text, f"/no/folder/ipykernel_{number}.py", "exec"), vars(sys.modules["__main__"]))


run_cell(1, """
import ddprun, os
SIZE = 5

class Its:
    def __init__(self, value):
        self.value = value

def helper(value):
    return Its((value, SIZE, int(os.environ["RANK"])))

def f(given):
    return helper(given.value)
""")
run_cell(2, """
SIZE = 6
results = ddprun.launch(f, (Its(3),), nproc_per_node=2)
print([type(each) is Its and each.value for each in results.values()])
""")
run_cell(3, """
def g():
    raise ValueError("typed")

try:
    ddprun.launch(g, nproc_per_node=2)
except ValueError as error:
    print(error, "in g" in str(error.__cause__))
""")
'''


class Scripts(InFolder):
    def test_a_function_of_a_script(self):
        out = self.out_of(self.script(IN_SCRIPT))
        self.assertEqual(sorted(out.splitlines()), ["[(3, 5, 0), (3, 5, 1)]", *["imported as __main__"], *["imported as __mp_main__"] * 2])

    def test_a_function_of_a_module_that_is_run(self):
        (self.folder / "package").mkdir()
        self.script("import os\n", "package/__init__.py")
        self.script(IN_SCRIPT, "package/train.py")
        self.assertIn("[(3, 5, 0), (3, 5, 1)]\n", self.out_of("-m", "package.train"))

    def test_a_script_is_not_imported_for_functions_of_modules(self):
        out = self.out_of(self.script("""
            import ddprun, work
            print("imported")
            print(ddprun.launch(work.add, (1,), nproc_per_node=2))
            """))
        self.assertEqual(out, "imported\n{0: 1, 1: 2}\n")

    def test_a_script_that_launches_when_it_is_imported(self):
        done = self.run_python(self.script("""
            import ddprun
            def f():
                pass
            ddprun.launch(f, nproc_per_node=2)
            """))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.splitlines()[-1], r"^RuntimeError: launch\(\) was called while a worker imports this script .*__main__")

    def test_a_lambda_without_cloudpickle(self):
        done = self.run_python(self.script("""
            import ddprun, sys
            sys.modules["cloudpickle"] = None
            if __name__ == "__main__":
                ddprun.launch(lambda: 5, nproc_per_node=2)
            """))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.splitlines()[-1], r"launch\(\) cannot send <lambda> .* cloudpickle, which is not installed")

    def test_a_notebook_without_cloudpickle(self):
        done = self.run_python("-c", "import sys; sys.modules['cloudpickle'] = None\n" + NOTEBOOK)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.splitlines()[-1], r"launch\(\) cannot send f .* cloudpickle, which is not installed")

    @unittest.skipUnless(HAS_CLOUDPICKLE, "without the package cloudpickle")
    def test_a_notebook(self):
        for arguments, text in ((["-c", NOTEBOOK], ""), (["-"], NOTEBOOK), ([self.script(NOTEBOOK)], "")):
            self.assertEqual(self.out_of(*arguments, input=text), "[(3, 6, 0), (3, 6, 1)]\ntyped True\n")

    @unittest.skipUnless(HAS_CLOUDPICKLE, "without the package cloudpickle")
    def test_closures_and_what_is_returned_by_value(self):
        out = self.out_of(self.script("""
            import ddprun, os
            def main():
                rate = 0.5
                results = ddprun.launch(lambda x: (lambda y: x * rate + y), (4,), nproc_per_node=1)
                print(results[0](1))
                try:
                    ddprun.launch(lambda: 1 / 0, nproc_per_node=2)
                except ZeroDivisionError as error:
                    print(error)
            if __name__ == "__main__":
                main()
            """))
        self.assertEqual(out, "3.0\ndivision by zero\n")

    @unittest.skipUnless(HAS_CLOUDPICKLE, "without the package cloudpickle")
    def test_a_worker_of_a_script_launches_a_lambda(self):
        out = self.out_of(self.script("""
            import ddprun
            def twice(x):
                return 2 * x
            def f():
                return ddprun.launch(lambda: twice(4), nproc_per_node=1)
            if __name__ == "__main__":
                print(ddprun.launch(f, nproc_per_node=1))
            """))
        self.assertEqual(out, "{0: {0: 8}}\n")

    def test_under_ddprun(self):
        """The caller is a worker itself."""
        script = self.script("""
            import ddprun, os, sys, work
            assert os.environ["WORLD_SIZE"] == "2"
            results = ddprun.launch(work.add, (int(os.environ["RANK"]) * 10,), nproc_per_node=1)
            sys.stdout.write(f"{results}\\n")
            """)
        out = self.out_of("-m", "ddprun", "--nproc-per-node=2", script)
        self.assertEqual(sorted(out.splitlines()), ["{0: 0}", "{0: 10}"])


# What a caller has left at the end of its job is looked at by the test; `how` the workers end.
INTERRUPTED = '''
import ddprun, os, pathlib, signal, sys, time, glob

folder = pathlib.Path(sys.argv[1])


def f(how):
    rank = os.environ["RANK"]
    if how == "ignore":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        (folder / f"started-{rank}").touch()
        time.sleep(1000)
    finally:
        (folder / f"finally-{rank}").touch()


if __name__ == "__main__":
    try:
        ddprun.launch(f, (sys.argv[2],), nproc_per_node=2, shutdown_timeout=1000)
    except KeyboardInterrupt:
        left = [each for each in glob.glob("/proc/[0-9]*/cmdline") if os.environ["TMPDIR"].encode() in open(each, "rb").read()]
        print("interrupted", len(left), os.listdir(os.environ["TMPDIR"]), flush=True)
        raise
'''


class Interrupted(InFolder):
    def start(self, how):
        script = self.script(INTERRUPTED)
        caller = subprocess.Popen([sys.executable, script, self.folder, how], env=self.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)

        def end():
            caller.kill()
            caller.communicate()
        self.addCleanup(end)
        self.await_that(lambda: len(list(self.folder.glob("started-*"))) == 2 or caller.poll() is not None)
        return caller

    def await_that(self, holds):
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)  # other processes

    def test_by_SIGINT_of_the_caller_alone(self):
        caller = self.start("raise")
        caller.send_signal(signal.SIGINT)
        out, err = caller.communicate(timeout=LIMIT_S)
        self.assertEqual((out, caller.returncode), ("interrupted 0 []\n", -signal.SIGINT), err)
        self.assertEqual(len(list(self.folder.glob("finally-*"))), 2)

    def test_workers_that_ignore_it_are_killed_by_a_second_one(self):
        caller = self.start("ignore")
        caller.send_signal(signal.SIGINT)
        [agent] = [each for each in Path("/proc").glob("[0-9]*") if self.is_agent_of(each, caller.pid)]
        self.await_that(lambda: self.is_stopping())
        caller.send_signal(signal.SIGINT)
        out, err = caller.communicate(timeout=LIMIT_S)
        self.assertEqual((out, caller.returncode), ("interrupted 0 []\n", -signal.SIGINT), err)
        self.assertEqual(list(self.folder.glob("finally-*")), [])
        self.assertFalse(agent.exists())

    @staticmethod
    def is_agent_of(process, caller):
        with contextlib.suppress(OSError):
            return (process / "stat").read_text().rpartition(")")[2].split()[1] == str(caller)

    def is_stopping(self):
        [events] = self.temporary.glob("*/events")
        return '"event":"signal"' in events.read_text()

    def test_the_death_of_the_caller_ends_its_workers(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(number):
                caller = self.start("raise")
                caller.send_signal(number)
                caller.communicate(timeout=LIMIT_S)
                self.await_that(lambda: not processes_of(self.temporary))
                [left] = self.temporary.iterdir()  # its owner could not remove it any more
                self.assertEqual(left.stat().st_mode & 0o777, 0o700)
                for each in left.iterdir():
                    each.unlink()
                left.rmdir()
                for each in self.folder.glob("started-*"):
                    each.unlink()


class Program(InFolder):
    """python -m ddprun"""

    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        cls.bin = Path(cls.place.name) / "environment/bin"
        venv.create(cls.bin.parent, symlinks=True)
        (cls.bin / "ddprun").symlink_to(DDPRUN)
        cls.elsewhere = Path(cls.place.name) / "elsewhere/bin/python"  # an environment without ddprun
        venv.create(cls.elsewhere.parents[1], symlinks=True)

    def setUp(self):
        super().setUp()
        self.environment["PATH"] = "/usr/bin:/bin"

    def run_in_environment(self, *arguments, python=None, **more):
        return subprocess.run([python or self.bin / "python", "-m", "ddprun", *arguments], env=self.environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=LIMIT_S, **more)

    def test_workers_have_the_same_interpreter(self):
        script = self.script("""
            import os, sys
            sys.stdout.write(f"{sys.executable} {sys.prefix} {os.environ['RANK']} {sys.argv[1:]}\\n")
            """)
        for variables in ({}, {"VIRTUAL_ENV": str(self.elsewhere.parents[1])}):
            self.environment |= variables
            done = self.run_in_environment("--nproc-per-node=2", script, "--lr", "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(done.stdout.splitlines()),
                             [f"{self.bin}/python {self.bin.parent} {rank} ['--lr', '1']" for rank in (0, 1)])
        self.environment["PYTHON_EXEC"] = str(self.elsewhere)
        self.assertIn(str(self.elsewhere), self.run_in_environment(script).stdout)

    def test_it_is_the_program_of_the_same_environment(self):
        """Before that on PATH; then the user's own; then that on PATH; else a sentence."""
        other = self.folder / "other/bin/ddprun"
        other.parent.mkdir(parents=True)
        other.write_text("#!/bin/sh\necho other\n")
        other.chmod(0o755)
        self.environment["PATH"] = f"{other.parent}:/usr/bin:/bin"
        self.assertRegex(self.run_in_environment("--version").stdout, "^ddprun [0-9]")
        self.assertEqual(self.run_in_environment("--version", python=self.elsewhere).stdout, "other\n")
        self.environment |= {"PATH": "/usr/bin:/bin", "PYTHONUSERBASE": str(other.parents[1])}
        self.assertEqual(self.run_in_environment("--version", python=self.elsewhere).stdout, "other\n")
        del self.environment["PYTHONUSERBASE"]
        done = self.run_in_environment("--version", python=self.elsewhere)
        self.assertEqual((done.returncode, done.stdout), (127, ""))
        self.assertRegex(done.stderr, r"^ddprun: the program ddprun is neither in .* nor on PATH; `pip install` .*\n$")

    def test_exit_codes_and_words_are_those_of_ddprun(self):
        for arguments in (["--foo", "x.py"], [self.script("import sys\nsys.exit(7)\n")], ["no-file.py"], ["--no-python", "/bin/true"], []):
            def told(done):
                return done.returncode, done.stdout, re.sub(r"\d{2,}|\d\.\d+", "N", done.stderr)
            direct = subprocess.run([DDPRUN, *arguments], env={**self.environment, "PYTHON_EXEC": str(self.bin / "python")}, cwd=self.folder,
                                    capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual(told(self.run_in_environment(*arguments)), told(direct))

    def test_what_python_ignores_is_not_ignored_in_its_programs(self):
        out = self.run_in_environment("--no-python", "/bin/grep", "SigIgn", "/proc/self/status").stdout
        ignored = int(out.split()[1], 16)
        self.assertEqual([each for each in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (each - 1) & 1], [])

    def test_signals_reach_ddprun_itself(self):
        script = self.script("import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(1000)\n")
        job = subprocess.Popen([self.bin / "python", "-m", "ddprun", script], env=self.environment, cwd=self.folder, stderr=subprocess.PIPE,
                               text=True)
        try:
            deadline = time.monotonic() + LIMIT_S
            while not (self.folder / "started").exists():
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)  # another process's file
            self.assertEqual(os.readlink(f"/proc/{job.pid}/exe"), str(DDPRUN))
            job.terminate()
            _, err = job.communicate(timeout=LIMIT_S)
        finally:
            job.kill()
            job.wait()
        self.assertEqual(job.returncode, 128 + signal.SIGTERM)
        self.assertIn("STOPPED by SIGTERM", err)

    def test_pdb_in_a_worker(self):
        script = self.script("value = 21\nbreakpoint()\nprint('went on', value)\n")
        done = self.run_in_environment(script, input="p value * 2\nvalue = 5\nc\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("42", done.stdout)
        self.assertIn("went on 5", done.stdout)


DEBUGGED = '''
import ddprun, os


def f(x):
    y = x * int(os.environ["RANK"])
    return y  # here


if __name__ == "__main__":
    if "RANK" in os.environ:
        print(f(3))
    else:
        print(ddprun.launch(f, (3,), nproc_per_node=2))
'''


class Editor:
    """As much of an IDE as a debug session needs: debugpy's adapter over its stdin and stdout, and one more connection for each
    worker. Notes where processes have stopped, and lets them go on."""

    def __init__(self, script, **launched):
        self.script, self.stopped, self.out, self.err, self.threads = str(script), [], "", "", []
        self.adapter = subprocess.Popen([sys.executable, "-m", "debugpy.adapter"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, env=launched["env"])
        self.follow(self.adapter.stdout, self.adapter.stdin, "launch", console="internalConsole", subProcess=True, justMyCode=False,
                    python=[sys.executable], **launched)

    def wait(self):
        try:
            for each in self.threads:  # workers are added to them
                each.join(LIMIT_S)
                assert not each.is_alive(), self.out + self.err
        finally:
            self.adapter.kill()
            self.adapter.wait()

    def follow(self, *session, **how):
        self.threads.append(threading.Thread(target=self.session, args=session, kwargs=how, daemon=True))
        self.threads[-1].start()

    def session(self, reader, writer, command, **how):
        with reader, writer, contextlib.suppress(BrokenPipeError, ConnectionError):
            self.converse(reader, writer, command, how)

    def converse(self, reader, writer, command, how):
        def ask(command, **arguments):
            message = json.dumps({"seq": next(numbers), "type": "request", "command": command, "arguments": arguments}).encode()
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(message), message))
            writer.flush()
        numbers = itertools.count(1)
        ask("initialize", adapterID="debugpy", pathFormat="path")
        ask(command, **how)
        for length in iter(reader.readline, b""):
            reader.readline()
            message = json.loads(reader.read(int(length.split()[1])))
            what, body = message.get("event") or message.get("command"), message.get("body") or {}
            if what == "initialized":
                [line] = [number for number, text in enumerate(DEBUGGED.splitlines(), 1) if "# here" in text]
                ask("setBreakpoints", source={"path": self.script}, breakpoints=[{"line": line}])
                ask("configurationDone")
            elif what == "debugpyAttach":
                with socket.create_connection((body["connect"]["host"], body["connect"]["port"])) as worker:
                    self.follow(worker.makefile("rb"), worker.makefile("wb"), "attach", **body)
            elif what == "stopped":
                thread = body["threadId"]
                ask("stackTrace", threadId=thread)
            elif what == "stackTrace":
                self.stopped.append(body["stackFrames"][0]["name"])
                ask("continue", threadId=thread)
            elif what == "output" and body.get("category") == "stdout" and command == "launch":
                self.out += body["output"]
            elif what == "output":
                self.err += body["output"]
            elif what == "terminated":
                break


@unittest.skipUnless(importlib.util.find_spec("debugpy"), "without the package debugpy")
class Debugged(InFolder):
    """A breakpoint in workers, as in VS Code."""

    def setUp(self):
        super().setUp()
        self.path = self.script(DEBUGGED)

    def stops_in_workers(self, **launched):
        editor = Editor(self.path, env=self.environment, cwd=str(self.folder), **launched)
        editor.wait()
        self.assertEqual(editor.stopped, ["f", "f"], editor.out + editor.err)
        return editor.out

    def test_a_program_of_ddprun(self):
        self.stops_in_workers(module="ddprun", args=["--nproc-per-node=2", str(self.path)])

    def test_a_function_of_launch(self):
        self.assertIn("{0: 0, 1: 3}", self.stops_in_workers(program=str(self.path)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
