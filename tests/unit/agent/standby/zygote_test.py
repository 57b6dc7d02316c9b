"""The Python side of standbys by itself: this test is the agent. A program that is run by a standby must do what it does
when Python starts it: same output, exit code and traceback.

    python zygote_test.py [unittest's arguments]
"""

import contextlib
import ctypes
import io
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile

SOURCES = sorted((pathlib.Path(__file__).parents[4] / "agent/standby/python").glob("*.py"))
HEADER = struct.Struct("=IIiI")
HELLO, READY, UNFIT, ANEW = 1, 2, 3, 4
PREPARE, FORK, BECOME = 16, 17, 18
PR_SET_CHILD_SUBREAPER = 36

# What a program sees of itself and of its interpreter; object addresses and process ids are not in it.
SEES = """
import os, sys
print(sys.argv, sys.orig_argv, sys.path, __name__, __file__ if "__file__" in globals() else None, sys.flags)
print(sorted((k, v) for k, v in os.environ.items() if k != "OLDPWD"))
print([getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path if "Preloaded" not in str(finder)])
print("sitecustomize" in sys.modules, "library" in sys.modules, sys.stdin.fileno(), sys.stdout.line_buffering)
with open("/proc/self/cmdline") as file: print(file.read())
print(os.getcwd(), os.getsid(0) == os.getpid())
"""


class Zygote:
    def __init__(self, words, folder, environment=None, preload=("library",)):
        self.environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": str(folder / "lib"),
                            **(environment or {})}
        self.command = [sys.executable, "-u", *words]
        self.folder = folder
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            for source in SOURCES:
                file.write(source, source.name)
        self.agent, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = os.memfd_create("code", 0)
        os.write(code, archive.getvalue())
        own = f"/proc/self/fd/{code}:{self.environment['PYTHONPATH']}"
        self.process = subprocess.Popen(
            self.command, cwd=folder, pass_fds=[code, other.fileno()], stdin=subprocess.DEVNULL,
            env={**self.environment, "PYTHONPATH": own, "DDPRUN_ZYGOTE_FD": str(other.fileno())})
        os.close(code)
        other.close()
        self.agent.settimeout(120)  # it may import PyTorch, beside other tests
        self.hello = self.receive(self.agent)
        with tempfile.TemporaryFile() as names:
            names.write("\0".join(preload).encode())
            names.flush()
            self.send(self.agent, PREPARE, "", [names.fileno()])
        self.answer = self.receive(self.agent)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.agent.close()
        self.process.wait(30)

    @staticmethod
    def receive(channel):
        data = channel.recv(70000)
        return (HEADER.unpack(data[:16])[0], HEADER.unpack(data[:16])[2], data[16:].decode()) if data else None

    @staticmethod
    def send(channel, kind, text="", descriptors=()):
        message = HEADER.pack(kind, 1, os.getpid(), 0) + text.encode()
        socket.send_fds(channel, [message], list(descriptors)) if descriptors else channel.send(message)

    def fork(self):
        channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(30)
        self.send(self.agent, FORK, "", [other.fileno()])
        other.close()
        kind, pid, _ = self.receive(channel)
        assert kind == HELLO
        return channel, pid

    def become(self, channel, pid, environment):
        """(exit status, stdout, stderr, what it said to the agent) of a standby that becomes a worker."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(b"\0".join(f"{k}={v}".encode() for k, v in environment.items()))
            files[0].flush()
            self.send(channel, BECOME, "", [file.fileno() for file in files])
            _, status = os.waitpid(pid, 0)
            said = self.receive(channel)
            channel.close()
            return os.waitstatus_to_exitcode(status), *(self.text(file) for file in files[1:]), said

    @staticmethod
    def text(file):
        file.seek(0)
        return file.read().decode()

    def by_standby(self, **variables):
        return self.become(*self.fork(), {**self.environment, **variables})

    def plainly(self, **variables):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            done = subprocess.run(self.command, cwd=self.folder, env={**self.environment, **variables}, stdout=out,
                                  stderr=err, stdin=subprocess.DEVNULL, start_new_session=True)
            return done.returncode, self.text(out), self.text(err)


class Standby(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name).resolve()
        self.write("lib/library/__init__.py", "import decimal\nvalue = 7\n")
        self.write("lib/library/part.py", "from library import value\n")

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    def same(self, words, preload=("library", "library.part"), **variables):
        """Runs the program in both ways; what both did."""
        with Zygote(words, self.folder, preload=preload) as zygote:
            self.assertEqual(zygote.answer[0], READY, zygote.answer)
            *by_standby, said = zygote.by_standby(RANK="0", **variables)
            self.assertIsNone(said)
            self.assertEqual(by_standby, list(zygote.plainly(RANK="0", **variables)))
        return by_standby

    def test_a_program_that_closes_all_descriptors_and_opens_others(self):
        self.write("lib/library/__init__.py", "print('imported')\n")
        begin = """
            import os
            os.closerange(3, 1024)
            files = [open(f"{number}", "w+") for number in range(20)]
        """
        end = """
            sizes = [os.fstat(file.fileno()).st_size for file in files]
            print([os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)) for file in files], sizes)
        """
        _, out, _ = self.same([self.write("main.py", textwrap.dedent(begin) + "import library\n" + textwrap.dedent(end))])
        self.assertIn("imported", out)
        path = self.write("main.py", textwrap.dedent(begin) + "os.environ['OMP_NUM_THREADS'] = '3'\nimport library\n" +
                          textwrap.dedent(end))
        with Zygote([path], self.folder) as zygote:  # it starts anew, and cannot say so any more
            code, out, err, said = zygote.by_standby(RANK="0")
            self.assertEqual((code, out, err, said), (*zygote.plainly(RANK="0"), None))

    def test_modules_that_are_to_be_left_out(self):
        main = self.write("main.py", "import library.part; print(library.part.value)")
        with Zygote([main], self.folder, preload=("library", "other", "-other")) as zygote:
            self.assertEqual(zygote.answer[0::2], (READY, "library"))
        with Zygote([main], self.folder, preload=("library", "library.none")) as zygote:
            self.assertIn("library.none cannot be imported", zygote.answer[2])

    # ---- the same as a plain start

    def test_a_script(self):
        _, out, err = self.same([self.write("main.py", SEES), "a", "--b=c"])
        self.assertIn("'RANK', '0'", out)
        self.assertEqual(err, "")

    def test_a_script_by_a_relative_name_and_by_a_link(self):
        self.write("deep/main.py", SEES)
        os.symlink("deep/main.py", self.folder / "link.py")
        self.same(["deep/main.py"])
        self.same(["link.py"])

    def test_a_module_a_package_a_folder_a_zip_and_code(self):
        self.write("package/__init__.py", "")
        self.write("package/__main__.py", "from . import other\n" + SEES)
        self.write("package/other.py", "")
        self.write("folder/__main__.py", SEES)
        with zipfile.ZipFile(self.folder / "packed.zip", "w") as file:
            file.writestr("__main__.py", SEES)
        for words in (["-m", "package", "a"], ["-m", "package.other"], ["folder", "a"], ["packed.zip"], ["-c", SEES, "a"]):
            with self.subTest(words):
                self.same(words)

    def test_imports(self):
        self.write("near.py", "value = 1\n")
        _, out, _ = self.same([self.write("main.py", """
            import near, os, sys
            print(near.value, "library" in sys.modules)
            import library.part, decimal
            print(library.part.value, library.__spec__.origin, library.__loader__.path, library.part.__spec__.name)
            import importlib; importlib.reload(library); print(library.value)
            print(sorted(type(finder).__name__ for finder in sys.meta_path), os.listdir("/proc/self/fd"))
            """)])
        self.assertIn("1 False", out)

    def test_a_spec_that_is_looked_for_before_the_import(self):
        self.same([self.write("main.py", """
            import importlib.util
            spec = importlib.util.find_spec("library")
            print(spec.name, spec.origin, spec.submodule_search_locations, importlib.util.find_spec("library.none"))
            import library; print(library.value)
            """)])

    def test_ends(self):
        for text, code in (("raise ValueError('no')", 1), ("import sys; sys.exit(3)", 3), ("raise SystemExit('why')", 1),
                           ("import os; os._exit(4)", 4), ("def f(", 1), ("import library; library.part.none", 1),
                           ("import os; os.kill(os.getpid(), 15)", -15), ("assert False", 1),
                           ("import atexit; atexit.register(print, 'last'); raise KeyboardInterrupt", -2)):
            with self.subTest(text):
                self.assertEqual(self.same([self.write("main.py", text)], ("library",))[0], code)
        self.assertEqual(self.same([str(self.folder / "none.py")])[0], 2)

    def test_threads_that_outlive_main(self):
        self.same([self.write("main.py", """
            import threading, time
            threading.Thread(target=lambda: (time.sleep(0.1), print("later"))).start()
            print(threading.current_thread().name, threading.active_count())
            """)])

    def test_processes_of_every_kind(self):
        self.same([self.write("main.py", """
            import library, multiprocessing, subprocess, sys
            class OfMain:
                pass
            def work(queue):
                queue.put((library.value, OfMain()))
            if __name__ == "__main__":
                for method in ("fork", "spawn", "forkserver"):
                    context = multiprocessing.get_context(method)
                    queue = context.SimpleQueue()
                    process = context.Process(target=work, args=(queue,))
                    process.start()
                    value, instance = queue.get()
                    process.join()
                    print(method, value, type(instance), process.exitcode)
                print(subprocess.run([sys.executable, "-c", "import library; print(library.value)"]).returncode)
            """)])

    def test_signals(self):
        self.same([self.write("main.py", """
            import signal, os
            print([(s, signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)])
            signal.signal(signal.SIGTERM, lambda *_: print("handled"))
            os.kill(os.getpid(), signal.SIGTERM)
            """)])

    def test_a_sitecustomize_of_the_user(self):
        self.write("lib/sitecustomize.py", "import os; print('customized', os.environ.get('RANK'), __file__)\n")
        _, out, _ = self.same([self.write("main.py", "import sys; print(sys.modules['sitecustomize'])")])
        self.assertIn("customized 0", out)

    def test_a_sitecustomize_of_the_user_that_fails(self):
        self.write("lib/sitecustomize.py", "import missing\n")
        self.assertIn("missing", self.same([self.write("main.py", "print(1)")])[2])

    def test_what_a_module_prints(self):
        self.write("lib/library/__init__.py", "import sys, warnings; print('to out'); warnings.warn('to err')\n")
        _, out, err = self.same([self.write("main.py", "print('first'); import library; print('second')")], ("library",))
        self.assertEqual(out, "first\nto out\nsecond\n")
        self.assertIn("to err", err)

    def test_seeds(self):
        self.write("lib/numpy/__init__.py", "")
        self.write("lib/numpy/random.py", "import itertools; seed = itertools.count().__next__; get_state = tuple\n")
        path = self.write("main.py", "import random, numpy.random; print(random.random(), numpy.random.seed())")
        with Zygote([path], self.folder, preload=("numpy.random", "random")) as zygote:
            self.assertEqual(zygote.answer[0], READY, zygote.answer)
            (_, first, _, _), (_, second, _, _) = zygote.by_standby(), zygote.by_standby()
            self.assertNotEqual(first, second)
            self.assertTrue(first.endswith(" 2\n") and second.endswith(" 2\n"), (first, second))

    def test_a_changed_script_runs_as_it_is_now(self):
        path = self.write("main.py", "print('old')")
        with Zygote([path], self.folder) as zygote:
            channel, pid = zygote.fork()
            self.write("main.py", "print('new')")
            self.assertEqual(zygote.become(channel, pid, zygote.environment)[1], "new\n")

    # ---- where a plain start is needed

    def anew(self, zygote, why, **variables):
        code, out, err, said = zygote.by_standby(RANK="0", **variables)
        self.assertEqual((code, out, err), zygote.plainly(RANK="0", **variables))
        self.assertEqual(said[0], ANEW)
        self.assertIn(why, said[2])
        return out

    def test_a_variable_that_a_module_has_read(self):
        self.write("lib/library/__init__.py", "import os; value = os.environ.get('HF_HOME')\n")
        path = self.write("main.py", "import os, sys; os.environ['HF_HOME'] = '/h'; import library; print(library.value)")
        with Zygote([path], self.folder) as zygote:
            self.assertEqual(self.anew(zygote, "HF_HOME"), "/h\n")

    def test_a_variable_for_a_library_in_c(self):
        path = self.write("main.py", "import os; os.environ['OMP_NUM_THREADS'] = '3'; import library; print(1)")
        with Zygote([path], self.folder) as zygote:
            self.anew(zygote, "the program sets OMP_NUM_THREADS")

    def test_a_variable_that_nobody_has_read(self):
        self.same([self.write("main.py", "import os; os.environ['MINE'] = '3'; import library; os.environ['OMP_X'] = '1'")])

    def test_a_module_of_the_programs_own_folder_wins(self):
        path = self.write("main.py", "import library; print(library.value)")
        with Zygote([path], self.folder) as zygote:
            channel, pid = zygote.fork()
            self.write("library.py", "value = 'mine'\n")
            _, out, _, said = zygote.become(channel, pid, zygote.environment)
            self.assertEqual((out, said[0]), ("mine\n", ANEW))

    def test_a_module_of_another_folder_that_the_program_puts_first_wins(self):
        self.write("mine/library.py", "value = 'mine'\n")
        path = self.write("main.py", "import sys; sys.path.insert(0, 'mine'); import library; print(library.value)")
        with Zygote([path], self.folder) as zygote:
            self.assertEqual(self.anew(zygote, "mine has a module library"), "mine\n")

    def test_a_module_that_was_changed(self):
        path = self.write("main.py", "import library; print(library.value)")
        with Zygote([path], self.folder) as zygote:
            self.write("lib/library/__init__.py", "value = 'changed'\n")
            self.assertEqual(self.anew(zygote, "has changed"), "changed\n")

    # ---- where there can be no standby

    def unfit(self, why, preload=("library",), words=None):
        with Zygote(words or [self.write("main.py", "print('must not run')")], self.folder, preload=preload) as zygote:
            self.assertEqual(zygote.answer[0], UNFIT, zygote.answer)
            name, _, sentence = zygote.answer[2].partition("\0")
            self.assertIn(why, sentence)
            self.assertIsNone(zygote.receive(zygote.agent))
            self.assertEqual(zygote.process.wait(30), 0)
        return name

    def test_a_module_that_reads_a_workers_variables(self):
        self.write("lib/reader.py", "import os; rank = os.getenv('RANK')\n")
        self.assertEqual(self.unfit("reader reads RANK", ("library", "reader")), "reader")

    def test_a_module_that_starts_a_thread(self):
        self.write("lib/threads.py", "import threading, time; threading.Thread(target=time.sleep, args=(99,)).start()\n")
        self.unfit("starts a thread", ("threads",))

    def test_a_module_that_opens_a_socket(self):
        self.write("lib/sockets.py", "import socket; mine = socket.socket()\n")
        self.unfit("opens a socket", ("sockets",))

    def test_a_module_that_ends_the_program(self):
        self.write("lib/ender.py", "raise SystemExit(5)\n")
        self.assertEqual(self.unfit("SystemExit", ("ender",)), "ender")

    def test_a_module_that_is_not_there_is_left_out(self):
        with Zygote([self.write("main.py", "print(1)")], self.folder, preload=("library", "absent")) as zygote:
            self.assertEqual(zygote.answer[0], READY)
            self.assertIn("absent cannot be imported", zygote.answer[2])
            self.assertEqual(zygote.by_standby()[1], "1\n")

    def test_the_first_module_must_be_there(self):
        self.assertEqual(self.unfit("absent cannot be imported", ("absent", "library")), "absent")

    def test_a_module_that_the_program_has_one_of_its_own_of(self):
        self.write("library.py", "")
        self.unfit("has a module library of its own")

    # ---- the processes

    def test_nothing_runs_without_the_agent(self):
        path = self.write("main.py", "open('ran', 'w')")
        with Zygote([path], self.folder) as zygote:
            channel, pid = zygote.fork()
            channel.close()
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            channel, pid = zygote.fork()
        self.assertEqual(zygote.process.returncode, 0)  # the end of the agent's socket
        os.kill(pid, 0)  # a standby outlives its zygote
        self.assertEqual(zygote.become(channel, pid, zygote.environment)[0], 0)
        self.assertTrue((self.folder / "ran").exists())

    def test_an_empty_program_says_hello_and_ends(self):
        with Zygote(["-c", ""], self.folder, preload=()) as zygote:
            self.assertEqual(zygote.hello[0], HELLO)

    def test_a_standby_is_a_process_of_its_own(self):
        with Zygote([self.write("main.py", "print(1)")], self.folder) as zygote:
            (first, one), (second, two) = zygote.fork(), zygote.fork()
            for pid in (one, two):
                with open(f"/proc/{pid}/stat") as file:
                    _, parent, group, session = file.read().rpartition(") ")[2].split()[:4]
                self.assertEqual((int(parent), int(group), int(session)), (os.getpid(), pid, pid))
            os.kill(one, signal.SIGKILL)
            os.waitpid(one, 0)
            self.assertEqual(zygote.become(second, two, zygote.environment)[1], "1\n")
            first.close()


if __name__ == "__main__":
    unittest.main(verbosity=1)
