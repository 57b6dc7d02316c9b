"""What a checkpoint costs a training step."""

import json
import tempfile

from benchmarks.programs import BUILD, PYTHON, ROOT, run
from benchmarks.table import Row

MEGABYTES = 100


def one_run(command, repetitions):
    with tempfile.TemporaryDirectory() as folder:
        output = run([*command, f"--folder={folder}", f"--megabytes={MEGABYTES}", f"--repetitions={repetitions}"])
    return json.loads(output.stdout)


def bench_checkpoint(quick):
    """How long saving 100 MB blocks the step, asynchronously; the floor is one memcpy, the peer torch.save."""
    ours = [str(BUILD / "bench/checkpoint_block")]
    theirs = [PYTHON, str(ROOT / "tests/compat/checkpoint_block.py")]
    row = Row(f"checkpoint of {MEGABYTES} MB blocks the step", "ms")
    for _ in range(1 if quick else 5):
        saved = one_run(ours, repetitions=3 if quick else 11)
        row.add("floor", saved["memcpy_ms"])
        row.add("ddprun", saved["block_ms"])
        row.add("torch.save", one_run(theirs, repetitions=1 if quick else 3)["block_ms"])
    ratio = row.ratio("ddprun", "floor")
    row.bar("≤ 1.2 × one memcpy", ratio, ratio <= 1.2)
    yield row
