"""Reads event files of worker_lib with TensorBoard's own reader: after a SIGKILL, and of a run that was resumed.

  python tensorboard_test.py build/tests/event_file_probe
"""

import glob
import logging
import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader


def scalars(folder):
    """{tag: {step: value}}, as TensorBoard shows them; every value of every tag."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells that it purges, which is what we want
    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0})
    accumulator.Reload()
    assert not accumulator.Tags()["tensors"] and not accumulator.Tags()["images"]
    found = {}
    for tag in accumulator.Tags()["scalars"]:
        events = accumulator.Scalars(tag)
        assert len({event.step for event in events}) == len(events), f"{tag} has a step twice"
        assert all(abs(event.wall_time - time.time()) < 60 for event in events)
        found[tag] = {event.step: event.value for event in events}
    return found


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def expected(steps, sign):
    return ({step: as_float(sign / step) for step in steps}, {step: sign * step for step in steps if step % 10 == 0})


def check(found, losses, sizes, last):
    assert found.keys() == {"loss/train", 'größe "x"', "not a number", "large step"}, found.keys()
    assert found["loss/train"] == losses, found["loss/train"]
    assert found['größe "x"'] == sizes
    assert math.isnan(found["not a number"][last])
    assert found["large step"] == {1 << 40: 1}


def main():
    probe = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        assert subprocess.run([probe, folder]).returncode == -signal.SIGKILL
        first, = glob.glob(os.path.join(folder, "events.out.tfevents.*"))
        losses, sizes = expected(range(1, 101), 1)
        check(scalars(folder), losses, sizes, 100)

        # One bit in the middle: the checksums are checked, so what the reader accepted was right.
        with tempfile.TemporaryDirectory() as damaged:
            content = bytearray(open(first, "rb").read())
            content[len(content) // 2] ^= 1
            path = os.path.join(damaged, os.path.basename(first))
            open(path, "wb").write(content)
            assert len(list(RawEventFileLoader(path).Load())) < len(list(RawEventFileLoader(first).Load()))

        # The killed run had gone on to 100; its checkpoint was of step 80.
        subprocess.run([probe, folder, "81"], check=True)
        assert len(os.listdir(folder)) == 2
        losses, sizes = expected(range(1, 81), 1)
        for before, after in zip((losses, sizes), expected(range(81, 201), -1)):
            before.update(after)
        check(scalars(folder), losses, sizes, 200)
    print("TensorBoard reads every scalar, after a SIGKILL and of a resumed run")


if __name__ == "__main__":
    main()
