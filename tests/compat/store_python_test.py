"""Unmodified torch.distributed.TCPStore clients against our store, and our client against PyTorch's.

Run by CTest: store_python_test.py HOST_PROGRAM PROBE. HOST_PROGRAM prints the port it serves a store on
and ends when its stdin closes; PROBE runs our C++ client against the store at HOST PORT.
"""
import contextlib
import datetime
import os
import subprocess
import sys
import threading
import unittest

os.environ["OMP_NUM_THREADS"] = "1"  # read by the import of torch
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from forked import LIMIT_S, Forked, rank_variables  # noqa: E402

HOST = "127.0.0.1"
PROGRAM = sys.argv.pop(1)
PROBE = sys.argv.pop(1)


def ms(number):
    return datetime.timedelta(milliseconds=number)


@contextlib.contextmanager
def served():
    process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=10)


class TcpStore(unittest.TestCase):
    def setUp(self):
        self.host = contextlib.ExitStack()
        self.port = self.host.enter_context(served())

    def tearDown(self):
        self.host.close()

    def connect(self, timeout=ms(10000), world_size=None):
        return dist.TCPStore(HOST, self.port, world_size, False, timeout, wait_for_workers=world_size is not None)

    def test_set_get_add_delete(self):
        store = self.connect()
        store.set("key", "value")
        self.assertEqual(store.get("key"), b"value")
        self.assertEqual(store.add("count", 5), 5)
        self.assertEqual(store.add("count", -7), -2)
        self.assertEqual(store.get("count"), b"-2")
        self.assertTrue(store.delete_key("key"))
        self.assertFalse(store.delete_key("key"))
        self.assertEqual(store.num_keys(), 1)
        store.set("", b"\x00\xff")
        self.assertEqual(store.get(""), b"\x00\xff")

    def test_large_values(self):
        store = self.connect()
        for size in (1439, 1441, 100_000, 8 << 20):
            value = os.urandom(size)
            store.set("big", value)
            self.assertEqual(store.get("big"), value)

    def test_compare_set(self):
        store = self.connect()
        self.assertEqual(store.compare_set("k", "expected", "new"), b"expected")
        self.assertFalse(store.check(["k"]))
        self.assertEqual(store.compare_set("k", "", "first"), b"first")
        self.assertEqual(store.compare_set("k", "other", "second"), b"first")
        self.assertEqual(store.compare_set("k", "first", "second"), b"second")

    def test_append_multi_and_lists(self):
        store = self.connect()
        store.append("log", "a")
        store.append("log", "bc")
        self.assertEqual(store.get("log"), b"abc")
        store.multi_set(["a", "b"], ["1", ""])
        self.assertEqual(store.multi_get(["b", "a"]), [b"", b"1"])
        self.assertEqual(sorted(store.list_keys()), ["a", "b", "log"])
        self.assertTrue(store.check(["a", "b"]))
        self.assertFalse(store.check(["a", "absent"]))

    def test_wait_times_out_and_the_connection_lives_on(self):
        store = self.connect()
        with self.assertRaisesRegex(dist.DistStoreError, "wait timeout after 150ms, keys: /a, /b"):
            store.wait(["a", "b"], ms(150))
        store.set("a", "1")
        self.assertEqual(store.get("a"), b"1")

    def test_wait_is_released_by_another_client(self):
        waiter, setter = self.connect(), self.connect()
        done = threading.Event()

        def wait():
            waiter.wait(["x", "y"])
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        setter.set("x", "1")
        setter.add("y", 1)
        self.assertTrue(done.wait(10))
        thread.join()

    def test_clone_and_prefix_store(self):
        store = self.connect(world_size=1)
        clone = store.clone()
        inner = dist.PrefixStore("in", dist.PrefixStore("out", clone))
        inner.set("k", "v")
        self.assertEqual(store.get("out/in/k"), b"v")
        self.assertEqual(inner.list_keys(), ["k"])
        self.assertEqual(store.get("out/in/k"), b"v")
        self.assertEqual(store.num_keys(), 2)  # init/ too

    def test_queues(self):
        store, other = self.connect(), self.connect()
        store.queue_push("q", "1")
        store.queue_push("q", "22")
        self.assertEqual(store.queue_len("q"), 2)
        self.assertEqual(store.queue_pop("q"), b"1")
        self.assertEqual(store.queue_pop("q", False), b"22")
        with self.assertRaises(dist.QueueEmptyError):
            store.queue_pop("q", False)
        got = []
        thread = threading.Thread(target=lambda: got.append(store.queue_pop("q")))
        thread.start()
        other.queue_push("q", "late")
        thread.join(10)
        self.assertEqual(got, [b"late"])

    def test_add_to_text_ends_only_that_client(self):
        store, other = self.connect(), self.connect()
        store.set("text", "abc")
        with self.assertRaises(dist.DistNetworkError):
            store.add("text", 1)
        self.assertEqual(other.get("text"), b"abc")

    def test_waiter_that_dies_harms_nobody(self):
        code = (
            "import sys, torch.distributed as d\n"
            f"s = d.TCPStore('{HOST}', {self.port}, None, False)\n"
            "s.set('ready', '1')\n"
            "s.wait(['never'])\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        store = self.connect(timeout=ms(60000))
        store.wait(["ready"])
        process.kill()
        process.wait()
        store.set("never", "1")
        self.assertEqual(store.get("never"), b"1")


class OurClient(unittest.TestCase):
    def probe(self, port, kind):
        result = subprocess.run([PROBE, HOST, str(port), kind], stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_with_the_libuv_server(self):
        server = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False)
        self.probe(server.port, "libuv")

    def test_with_the_legacy_server(self):
        server = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False, use_libuv=False)
        self.probe(server.port, "legacy")

    def test_with_our_server(self):
        with served() as port:
            self.probe(port, "ours")


def all_reduce():
    dist.init_process_group("gloo", init_method="env://")
    tensor = torch.ones(4) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [10.0] * 4, tensor
    dist.barrier()
    dist.destroy_process_group()


class ProcessGroup(unittest.TestCase):
    def test_four_processes_all_reduce_over_the_agent_store(self):
        with served() as port:
            workers = [Forked(all_reduce, (), {**os.environ, **rank_variables(rank, 4, port), "GLOO_SOCKET_IFNAME": "lo",
                                               "TORCHELASTIC_USE_AGENT_STORE": "True"}) for rank in range(4)]
            try:
                for worker in workers:
                    _, errors = worker.communicate(LIMIT_S)
                    self.assertEqual(worker.returncode, 0, errors)
            finally:
                for worker in workers:
                    worker.kill()


if __name__ == "__main__":
    unittest.main()
