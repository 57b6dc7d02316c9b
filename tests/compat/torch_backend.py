"""The backend shm of ddprun.torch, beside Gloo: collectives, DDP, FSDP2, several nodes, failures and bad input.

  torch_backend.py PYTHON_FOLDER     the folder that has ddprun.torch, as it is installed
"""

import ctypes
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

os.environ["OMP_NUM_THREADS"] = "1"  # read by the import of torch
import torch_backend_cases  # noqa: E402
from forked import LIMIT_S, Forked, rank_variables  # noqa: E402

CASES = pathlib.Path(__file__).with_name("torch_backend_cases.py")
FOLDER = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(FOLDER))
DEATH_MS_MAX = 1000  # beside other tests; a limit that somebody waits for would be longer
CLONE_NEWNS = 0x00020000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDPRUN_", "TORCHELASTIC_"))}
    return {**kept, "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1", **more}


def call(name, *arguments):
    """A function of the C library that Python has not."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}{arguments}")


class TwoHosts:
    """Two network namespaces with a cable between them, for as long as this is open."""

    DEVICE = "cable"

    def __enter__(self):
        # Each is held by a process that waits for the end of its stdin.
        self.holders = [subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; read line"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            for holder in self.holders:
                if not holder.stdout.readline():
                    raise unittest.SkipTest("no network namespace can be made here")
            subprocess.run([*self.on(0), "ip", "link", "add", self.DEVICE, "type", "veth", "peer", "name", self.DEVICE,
                            "netns", str(self.holders[1].pid)], check=True)
            for host in range(2):
                for words in (["addr", "add", f"{self.address(host)}/24", "dev", self.DEVICE],
                              ["link", "set", self.DEVICE, "up"], ["link", "set", "lo", "up"]):
                    subprocess.run([*self.on(host), "ip", *words], check=True)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for holder in self.holders:
            holder.communicate()

    def namespace(self, host):
        return f"/proc/{self.holders[host].pid}/ns/net"

    def on(self, host):
        return ["nsenter", f"--net={self.namespace(host)}"]

    def enter(self, host):
        with open(self.namespace(host)) as file:
            call("setns", file.fileno(), 0)

    def address(self, host):
        return f"10.77.0.{host + 1}"


def run_ranks(size, *arguments, per_node=0, enter=lambda rank: None, variables=lambda rank: {}):
    """What each rank said: (stdout, stderr, exit code). An unmodified program is a command of its own, for what acts on it
    is there before its first line, and ends as Python ends. Each other rank is a fork that calls enter(rank) first."""
    port = str(free_port())

    def start(rank):
        its_own = environment(**{**rank_variables(rank, size, port, per_node), **variables(rank)})
        if arguments[0] != "unmodified":
            return Forked(torch_backend_cases.main, arguments, its_own, lambda: enter(rank))
        return subprocess.Popen([sys.executable, CASES, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=its_own)

    ranks = [start(rank) for rank in range(size)]
    try:
        return [(*rank.communicate(timeout=LIMIT_S), rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


class OfRanks(unittest.TestCase):
    def succeed(self, *arguments, **more):
        said = run_ranks(*arguments, **more)
        for rank, (_, errors, code) in enumerate(said):
            self.assertEqual(code, 0, f"rank {rank}: {errors[-3000:]}")
        return said


class Collectives(OfRanks):
    def test_of_two_and_three_ranks(self):
        for size in (2, 3):
            with self.subTest(ranks=size):
                self.succeed(size, "collectives")


class Backend(OfRanks):
    def test_names(self):
        self.succeed(2, "names")

    def test_ddp(self):
        for size in (2, 3):
            with self.subTest(ranks=size):
                self.succeed(size, "ddp")

    def test_fsdp_and_dtensor(self):
        self.succeed(2, "sharded")

    def test_several_nodes(self):
        self.succeed(4, "nodes", "gloo+shm", per_node=2)

    def test_hosts_of_several_ranks(self):
        with TwoHosts() as hosts:
            at_first = {"MASTER_ADDR": hosts.address(0), "GLOO_SOCKET_IFNAME": hosts.DEVICE}
            self.succeed(4, "nodes", "gloo+shm", per_node=2, enter=lambda rank: hosts.enter(rank // 2),
                         variables=lambda rank: at_first)

    def test_nodes_of_one_rank_have_gloo(self):
        self.succeed(2, "nodes", "gloo", per_node=1)

    def test_containers_have_gloo(self):
        if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"],
                                                             capture_output=True).returncode != 0:
            self.skipTest("no mount namespace can be made here")
        said = self.succeed(2, "nodes", "gloo", enter=lambda rank: rank == 1 and call("unshare", CLONE_NEWNS))
        self.assertIn("no shared memory, Gloo instead: ranks 0 and 1 are on one machine but not of one mount namespace",
                      said[0][1])

    def test_no_room_has_gloo(self):
        said = self.succeed(2, "nodes", "gloo", enter=lambda rank: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2))
        self.assertIn("no shared memory, Gloo instead: rank 0: there is no room for the", said[0][1])

    def test_a_dead_rank_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            said = run_ranks(3, "death", f"{folder}/when")
        for rank in (0, 2):
            text, errors, code = said[rank]
            self.assertEqual(code, 0, errors)
            self.assertIn("rank 1 (process", text)
            self.assertIn("has died", text)
            self.assertLess(float(text.split()[0]), DEATH_MS_MAX, text)

    def test_bad_input(self):
        self.succeed(2, "disagreement")

    def test_mixed_backends(self):
        said = run_ranks(2, "mixed")
        self.assertEqual(said[0][2], 7, said[0])
        self.assertIn("the backend of this rank is shm and that of rank 1 is gloo", said[0][0])

    def test_unmodified_program(self):
        said = self.succeed(2, "unmodified", variables=lambda rank: {"DDPRUN_TORCH_BACKEND": "shm"})
        self.assertEqual(said[0][0], "gloo shm 2\n")
        self.assertIn("ddprun: shm instead of gloo for tensors on the CPU (DDPRUN_TORCH_BACKEND=shm)\n", said[0][1])
        self.assertNotIn("ddprun:", said[1][1])

    def test_unmodified_program_without_the_variable(self):
        said = self.succeed(1, "unmodified")
        self.assertEqual(said[0][0], "gloo gloo 1\n")

    def test_unknown_backend_in_the_variable(self):
        said = self.succeed(1, "unmodified", variables=lambda rank: {"DDPRUN_TORCH_BACKEND": "ucx"})
        self.assertEqual(said[0][0], "gloo gloo 1\n")
        self.assertIn("ddprun: DDPRUN_TORCH_BACKEND has no effect: the only value is shm, not 'ucx'\n", said[0][1])

    def test_another_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(FOLDER / "ddprun", f"{folder}/ddprun")
            [library] = pathlib.Path(folder, "ddprun").glob("libddprun_torch-2.*.so")
            own = library.name

            def said():
                done = subprocess.run([sys.executable, "-c", "import ddprun.torch"], stderr=subprocess.PIPE, text=True,
                                      env=environment(PYTHONPATH=folder))
                self.assertEqual(done.returncode, 1)
                return done.stderr.splitlines()[-1]

            library = library.rename(library.with_name("libddprun_torch-2.9.1.so"))
            self.assertRegex(said(), r"^ImportError: ddprun.torch has the backend shm for torch 2.9.1, and this is torch "
                                     r"2\.\S+: install one of these, or use gloo$")
            library = library.rename(library.with_name(own))
            library.write_bytes(b"\x7fELF")
            self.assertRegex(said(), rf"^ImportError: \S+/{own} cannot be loaded, so there is no backend shm: ")
            library.unlink()
            self.assertEqual(said(), "ImportError: this copy of ddprun has no library for the backend shm: install the wheel "
                                     "(pip install ddprun)")


if __name__ == "__main__":
    unittest.main()
