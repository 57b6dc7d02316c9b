"""`python -m ddprun` is the program ddprun of the same environment.

  python_launch.py DDPRUN [TEST…]
"""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import venv
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
PACKAGE = Path(__file__).resolve().parents[2] / "worker_lib/python"
LIMIT_S = 120

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
    """Temporary files are in `temporary`, which is empty at the end of each test, and no process is left."""

    def setUp(self):
        whole = tempfile.TemporaryDirectory()
        self.addCleanup(whole.cleanup)
        self.folder = Path(whole.name)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
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


class Program(InFolder):
    """python -m ddprun"""

    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        cls.bin = Path(cls.place.name) / "environment/bin"
        venv.create(cls.bin.parent, symlinks=True)
        (cls.bin / "ddprun").symlink_to(DDPRUN)

    def setUp(self):
        super().setUp()
        self.environment["PATH"] = "/usr/bin:/bin"

    def run_in_environment(self, *arguments, python=None, **more):
        return subprocess.run([python or self.bin / "python", "-m", "ddprun", *arguments], env=self.environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=LIMIT_S, **more)

    def test_workers_have_the_same_interpreter(self):
        script = self.script("import os, sys\nprint(sys.executable, sys.prefix, os.environ['RANK'], sys.argv[1:])\n")
        elsewhere = Path(self.place.name) / "elsewhere"
        if not elsewhere.exists():
            venv.create(elsewhere, symlinks=True)
        for variables in ({}, {"VIRTUAL_ENV": str(elsewhere)}):
            self.environment |= variables
            done = self.run_in_environment("--nproc-per-node=2", script, "--lr", "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(done.stdout.splitlines()),
                             [f"{self.bin}/python {self.bin.parent} {rank} ['--lr', '1']" for rank in (0, 1)])
        self.environment["PYTHON_EXEC"] = str(elsewhere / "bin/python")
        self.assertIn(str(elsewhere), self.run_in_environment(script).stdout)

    def test_it_is_the_program_of_the_same_environment(self):
        """Before that on PATH; then the user's own; then that on PATH; else a sentence."""
        other = self.folder / "other/bin/ddprun"
        other.parent.mkdir(parents=True)
        other.write_text("#!/bin/sh\necho other\n")
        other.chmod(0o755)
        self.environment["PATH"] = f"{other.parent}:/usr/bin:/bin"
        self.assertRegex(self.run_in_environment("--version").stdout, "^ddprun [0-9]")
        self.assertEqual(self.run_in_environment("--version", python=sys.executable).stdout, "other\n")
        self.environment |= {"PATH": "/usr/bin:/bin", "PYTHONUSERBASE": str(other.parents[1])}
        self.assertEqual(self.run_in_environment("--version", python=sys.executable).stdout, "other\n")
        del self.environment["PYTHONUSERBASE"]
        done = self.run_in_environment("--version", python=sys.executable)
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
