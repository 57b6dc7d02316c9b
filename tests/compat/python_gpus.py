"""What GPUs say, with a driver library of the tests (tests/support/fake_nvml.cpp), on a machine that need not have one: in status
and metrics, of a rank that has failed, and before a restart.

  python_gpus.py DDPRUN DDPCTL FOLDER_OF_THE_LIBRARY
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

DDPRUN, DDPCTL, LIBRARY = (Path(sys.argv.pop(1)).resolve() for _ in range(3))
GIB = 1 << 30

PROGRAM = """
import os, sys, time
folder, rank = os.environ["FOLDER"], int(os.environ["RANK"])
print("began", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
open(f"{folder}/began-{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w").write(str(os.getpid()))
words = f"{folder}/fail-{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
while not os.path.exists(words) and not os.path.exists(f"{folder}/finish"):
    time.sleep(0.01)
if os.path.exists(words):
    sys.exit(open(words).read())
"""


def gpu(used=GIB, ecc=0, more=""):
    return f"gpu used={used} total={80 * GIB} util=98 temp=61 ecc={ecc} {more}\n"


class Gpus(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        (self.folder / "train.py").write_text(PROGRAM)
        self.agent = None
        self.wrapper = []

    def tearDown(self):
        if self.agent and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()
        self.told.close()
        self.temporary.cleanup()

    def write(self, name, text):
        """The reader sees the old text or the new one."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.folder / name)

    def start(self, answers, *options, **environment):
        self.write("nvml", answers)
        self.environment = os.environ | {
            "PYTHON_EXEC": sys.executable, "FOLDER": str(self.folder), "DDPRUN_CONTROL_DIR": str(self.folder),
            "DDPRUN_FAKE_NVML": str(self.folder / "nvml"), "LD_LIBRARY_PATH": str(LIBRARY), "CUDA_VISIBLE_DEVICES": "0,1",
            "OMP_NUM_THREADS": "1"} | environment
        self.told = open(self.folder / "told", "w")
        self.agent = subprocess.Popen([*self.wrapper, DDPRUN, "--nproc-per-node=2", *options, str(self.folder / "train.py")],
                                      stdin=subprocess.DEVNULL, stdout=self.told, stderr=self.told, env=self.environment)
        return [self.pid(rank, 0) for rank in range(2)]

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, self.text())
            time.sleep(0.01)

    def pid(self, rank, round_):
        file = self.folder / f"began-{rank}-{round_}"
        self.until(lambda: file.exists() and file.read_text())
        return int(file.read_text())

    def text(self):
        return (self.folder / "told").read_text()

    def threads(self):
        return [(task / "comm").read_text().strip() for task in Path(f"/proc/{self.agent.pid}/task").iterdir()]

    def status(self, *options):
        return subprocess.run([DDPCTL, "status", *options], env=self.environment, stdout=subprocess.PIPE, text=True,
                              check=True).stdout

    def gpus(self):
        return json.loads(self.status("--json"))["nodes"][0]["gpus"]

    def ended(self):
        return self.agent.wait(60), self.text()

    def test_status_and_metrics(self):
        pids = self.start(gpu(), "--metrics-port=0")
        # The second rank's process is on the first GPU, whatever was assigned.
        self.write("nvml", gpu(61 * GIB) + f"process 0 {pids[1]} {60 * GIB}\n" + gpu(2 * GIB))
        self.until(lambda: len(self.gpus()) == 2)
        first, second = self.gpus()
        self.assertEqual((first["uuid"], first["pci_address"]), ("GPU-fake0", "0000:3a:00.0"))
        self.assertEqual([first[name] for name in ("memory_used_bytes", "utilization_percent", "temperature_celsius")],
                         [61 * GIB, 98, 61])
        self.assertEqual((first["ranks"], second["ranks"]), ([0, 1], []))
        self.assertRegex(self.status(), r"\nGPUS\n  \S+ GPU 0 \(ranks 0 and 1\): 61.0 of 80.0 GiB, 98 %, 61 °C\n")
        page = re.search(r"http://\S+?(?=/ )", self.text())[0]
        metrics = urllib.request.urlopen(page + "/metrics", timeout=10).read().decode()
        self.assertRegex(metrics, rf'ddprun_gpu_memory_used_bytes{{.*gpu="1",uuid="GPU-fake1"}} {2 * GIB}(\.0)?\n')
        self.write("finish", "")
        self.assertEqual(self.ended()[0], 0)

    def test_a_job_without_gpus_loads_nothing(self):
        self.start(gpu(), CUDA_VISIBLE_DEVICES="")
        self.assertNotIn("GPUS", self.status())
        if not os.path.exists("/dev/nvidiactl"):  # with it that thread looks whether a worker has a GPU open
            self.assertNotIn("ddprun-gpus", self.threads())
        self.assertNotIn("nvidia-ml", Path(f"/proc/{self.agent.pid}/maps").read_text())
        self.write("fail-0-0", "ValueError: a word that is none of a GPU's")
        code, text = self.ended()
        self.assertEqual(code, 1)
        self.assertNotIn("GPU", text.replace("GPU's", ""))

    def test_a_failure_has_the_xid_and_ecc_errors_of_its_gpu(self):
        self.start(gpu() + gpu(ecc=7))
        self.until(lambda: len(self.gpus()) == 2)
        self.write("nvml", gpu() + gpu(ecc=9) + "xid 1 79\n")
        self.until(lambda: "Xid 79" in self.text())
        self.write("fail-1-0", "RuntimeError: CUDA error: unspecified launch failure")
        code, text = self.ended()
        self.assertEqual(code, 1)
        xid = r"Xid 79 \(it has fallen off the bus\) on GPU 1 of \S+"
        self.assertRegex(text, rf"rank 1 failed: {xid}\n")
        self.assertRegex(text, rf"  its error\n    {xid}\n")
        self.assertRegex(text, r"\n  gpu         rank 1: 2 uncorrected ECC errors on GPU 1 of \S+ since the round began\n",
                         "what is new in the answer after its end")
        self.assertIn("    | RuntimeError: CUDA error: unspecified launch failure", text)

    def test_an_xid_is_told_after_an_error_of_the_watch(self):
        self.start(gpu() + gpu() + "events fail 1\n")
        self.until(lambda: len(self.gpus()) == 2)
        self.write("nvml", gpu() + gpu(more="lost") + "events fail 1\nxid 1 79\n")
        self.until(lambda: "Xid 79 (it has fallen off the bus) on GPU 1" in self.text())
        self.write("finish", "")
        self.assertEqual(self.ended()[0], 0)

    def test_out_of_memory_names_the_processes(self):
        pids = self.start(gpu())
        self.write("nvml", gpu(70 * GIB) + f"process 0 {pids[1]} {40 * GIB}\nprocess 0 {os.getpid()} {30 * GIB}\n" + gpu())
        self.write("fail-0-0", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
        code, text = self.ended()
        self.assertEqual(code, 1)
        self.assertRegex(text, r"\n  gpu         rank 0: GPU 0 of \S+ has 70.0 of 80.0 GiB in use after its end; held by "
                         rf"pid {pids[1]} \(\S+\) 40960 MiB, of this job; pid {os.getpid()} \(\S+\) 30720 MiB, not of this job\n")

    def test_a_restart_awaits_the_memory_of_the_dead(self):
        pids = self.start(gpu(), "--max-restarts=1")
        self.write("nvml", gpu(30 * GIB) + f"process 0 {pids[0]} {20 * GIB}\n" + gpu())
        self.write("fail-0-0", "no good")
        self.until(lambda: "waits for the GPU memory of workers that have ended" in self.text())
        self.assertIn(f"20.0 GiB on GPU 0 (pid {pids[0]})", self.text())
        self.assertFalse((self.folder / "began-0-1").exists())
        self.write("nvml", gpu() + gpu())
        self.pid(0, 1)
        self.assertRegex(self.text(), "the GPU memory is free after [0-9]+ s; the workers start")
        self.write("finish", "")
        self.assertEqual(self.ended()[0], 0)

    def test_the_memory_of_a_rank_is_awaited_where_it_is(self):
        pids = self.start(gpu() + gpu(), "--max-restarts=1")
        self.until(lambda: len(self.gpus()) == 2)
        # It is not on the GPU that was assigned to it, and NVML was not asked between.
        self.write("nvml", gpu() + gpu() + gpu(30 * GIB) + f"process 2 {pids[0]} {20 * GIB}\n")
        self.write("fail-0-0", "no good")
        self.until(lambda: f"20.0 GiB on GPU 2 (pid {pids[0]})" in self.text())
        self.write("nvml", gpu() + gpu() + gpu())
        self.pid(0, 1)
        self.write("finish", "")
        self.assertEqual(self.ended()[0], 0)

    def test_in_a_container_the_memory_in_use_counts(self):
        if os.geteuid() != 0:
            self.skipTest("only root makes a pid namespace")
        self.wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.start(gpu() + gpu(), "--max-restarts=1")
        self.until(lambda: len(self.gpus()) == 2)
        self.write("nvml", gpu(20 * GIB) + f"process 0 99999 {19 * GIB}\n" + gpu())
        self.write("fail-0-0", "torch.OutOfMemoryError: CUDA out of memory.")
        self.until(lambda: "workers that have ended: 19.0 GiB on GPU 0\n" in self.text())
        self.assertIn("held by pid 99999 19456 MiB (pids of the host, which mean nothing in this container)", self.text())
        self.write("nvml", gpu() + gpu())
        self.pid(0, 1)
        self.write("finish", "")
        self.assertEqual(self.ended()[0], 0)

    def test_a_stop_ends_that_wait(self):
        pids = self.start(gpu(), "--max-restarts=1")
        self.write("nvml", gpu(30 * GIB) + f"process 0 {pids[0]} {20 * GIB}\n" + gpu())
        self.write("fail-0-0", "no good")
        self.until(lambda: "waits for the GPU memory of workers that have ended" in self.text())
        self.agent.terminate()
        self.assertEqual(self.ended()[0], 143)
        self.assertFalse((self.folder / "began-0-1").exists())

    def test_a_driver_that_hangs_is_said_and_not_awaited(self):
        self.start(gpu() + gpu(), "--max-restarts=1")
        self.until(lambda: len(self.gpus()) == 2)
        time.sleep(1)  # the last answer is not new any more
        self.write("nvml", gpu() + gpu() + "hang\n")
        self.until(lambda: "NVML has not answered for" in self.status())
        began = time.monotonic()
        self.write("fail-0-0", "no good")
        self.pid(0, 1)
        self.assertNotIn("is being loaded", self.text())
        self.assertLess(time.monotonic() - began, 10)
        self.assertIn("say nothing: NVML has not answered for", self.text())
        self.assertIn("is not awaited: NVML does not answer", self.text())
        self.write("finish", "")
        self.assertEqual(self.ended()[0], 0, "and the agent ends while its thread hangs")

    def test_a_driver_that_is_slow_to_load_is_not_called_a_lost_gpu(self):
        for words, is_said in ("ValueError: no good", False), ("RuntimeError: CUDA error: no good", True):
            with self.subTest(words):
                self.start(gpu() + gpu() + "hang\n")
                self.write("fail-0-0", words)
                code, text = self.ended()
                self.assertEqual(code, 1)
                self.assertEqual("say nothing: NVML is being loaded" in text, is_said, text)
                self.assertNotIn("fallen off the bus", text)
                for file in self.folder.glob("*-0"):
                    file.unlink()
                self.told.close()

    def test_a_failure_does_not_wait_for_a_driver_that_hangs(self):
        self.start(gpu() + gpu(), f"--events={self.folder}/events")
        self.until(lambda: len(self.gpus()) == 2)
        self.write("nvml", gpu() + gpu() + "hang\n")
        began = time.monotonic()
        self.write("fail-0-0", "RuntimeError: CUDA error: no good")
        code, text = self.ended()
        self.assertEqual(code, 1)
        events = [json.loads(line) for line in (self.folder / "events").read_text().splitlines()]
        stopping, = (event["monotonic_us"] for event in events if event["event"] == "round_stopping")
        self.assertLess(stopping / 1e6 - began, 1, "the leader hears of it before NVML's limit is over")
        self.assertIn("say nothing: NVML has not answered", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
