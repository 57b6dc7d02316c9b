"""Values that Python programs report, and that are NaN or infinite: told once, named in the report of a failure, and with
--on-nan=stop the end of the job on all nodes.

  python_nan.py DDPRUN
"""
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DDPRUN = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(__file__).resolve().parents[2]

# Rank 3 has a NaN from step 120 on, all ranks an infinite norm at step 60.
TRAINING = """
import os, sys, time
from ddprun import progress

rank, end = int(os.environ["RANK"]), sys.argv[1]
for step in range(1, 200):
    is_nan = rank == 3 and (step >= 120 if end != "flaps" else step % 2 == 0)
    progress.report(step, loss=float("nan") if is_nan else 1 / step, norm=float("inf") if step == 60 else 1)
    time.sleep(0.005)
if end in ("fails", "flaps") and rank == 3:
    sys.exit("no good")
if end == "waits":
    time.sleep(1000)
"""


class Nan(unittest.TestCase):
    def run_job(self, end, *options):
        """Two nodes of two ranks; returns their exit codes, what each said, and its events."""
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
            free.close()
            Path(folder, "train.py").write_text(TRAINING)
            environment = os.environ | {"PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "worker_lib/python")}
            agents = [
                subprocess.Popen([
                    DDPRUN, "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", "--master-addr=127.0.0.1",
                    f"--master-port={port}", f"--events={folder}/events-{node}", *options, f"{folder}/train.py", end],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
                for node in range(2)]
            try:
                told = [agent.communicate(timeout=120)[0] for agent in agents]
            finally:
                for agent in agents:
                    agent.kill()
            events = [[json.loads(line) for line in Path(folder, f"events-{node}").read_text().splitlines()] for node in range(2)]
            return [agent.returncode for agent in agents], told, events

    @staticmethod
    def nans(events):
        return [(event["rank"], event["step"], event["name"], event["value"]) for event in events if event["event"] == "nan"]

    def test_is_told_once(self):
        codes, told, events = self.run_job("succeeds")
        self.assertEqual(codes, [0, 0], told)
        (rank, *rest), = self.nans(events[0])
        self.assertIn(rank, (0, 1))
        self.assertEqual(rest, [60, "norm", "inf"])
        self.assertEqual([each[1:] for each in self.nans(events[1])], [(60, "norm", "inf"), (120, "loss", "nan")])
        self.assertEqual(told[1].count("rank 3 reported loss = nan at step 120"), 1, told[1])

    def test_is_named_when_the_job_fails(self):
        codes, told, _ = self.run_job("fails")
        self.assertEqual(codes, [1, 1], told)
        self.assertIn("\n  nan         rank 3 reported loss = nan at step 120\n", told[1])
        self.assertRegex(told[1], r"\n  nan         rank [23] reported norm = inf at step 60, and it is finite again since\n")

    def test_a_value_that_is_nan_at_every_other_step_has_one_line(self):
        codes, told, events = self.run_job("flaps")
        self.assertEqual(codes, [1, 1], told)
        self.assertEqual([each for each in self.nans(events[1]) if each[2] == "loss"], [(3, 2, "loss", "nan")])
        self.assertEqual(told[1].count("loss = nan"), 2, "a line, and one in the report: " + told[1])
        self.assertIn("\n  nan         rank 3 reported loss = nan at step 2, and it is finite again since\n", told[1])

    def test_the_step_that_is_told_is_on_the_page(self):
        sys.path.insert(0, str(SOURCE / "worker_lib/python"))
        from ddprun import progress
        link = progress._Link(mmap.mmap(-1, progress._PAGE_BYTES), None, progress._NOT_FINITE_SINCE, None, 0)
        told = []

        def send(kind, version, more=b""):
            slot = link._numbers[progress._NOTES_AT // 8] % 2
            shown = progress._SLOT.unpack_from(link.page, progress._SLOT_AT + slot * progress._SLOT_BYTES)
            name, value = progress._VALUE.unpack_from(link.page, progress._VALUES_AT + slot * progress._VALUES_BYTES + 8)
            told.append((kind, progress._NAN.unpack(more)[0], shown[0], name.rstrip(b"\0"), struct.pack("d", value)))

        link._send = send
        for step, loss in (1, 0.5), (2, float("nan")), (3, 0.5), (4, float("nan")):
            link.note(step, 0, {"loss": loss})
        nan = struct.pack("d", float("nan"))
        self.assertEqual(told, [(progress._NOT_FINITE, step, step, b"loss", nan) for step in (2, 4)])

    def test_stops_the_job_on_all_nodes(self):
        codes, told, events = self.run_job("waits", "--on-nan=stop", "--max-restarts=3")
        self.assertEqual(codes, [116, 116], told)
        for text, lines in zip(told, events):
            self.assertRegex(text, r"FAILED: rank \d reported norm = inf at step 60; --on-nan=stop\n")
            self.assertEqual((lines[-1]["event"], lines[-1]["reason"], lines[-1]["restarts"]), ("finished", "nan", 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
