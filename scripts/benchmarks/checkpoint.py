"""What a checkpoint costs a training step, and a resume beyond the state itself."""

import json
import sys
import tempfile

from benchmarks.programs import BUILD, PYTHON, ROOT, ddprun_command, run
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
    yield from resume_rows(quick)


def resume_rows(quick):
    """1 GB, a model with Adam's state, resumed by 4 ranks from a file that rank 0 reads."""
    program, ranks = str(BUILD / "bench/checkpoint_resume"), 4
    memory = Row(f"resume of 1 GB on {ranks} ranks: memory of a rank beyond the state", "MiB")
    duration = Row(f"resume of 1 GB on {ranks} ranks", "s", digits=2)
    with tempfile.TemporaryDirectory() as folder:
        saved = json.loads(run(ddprun_command(1, program, f"--folder={folder}", "--save")).stdout)
        for _ in range(1 if quick else 3):
            resumed = json.loads(run(ddprun_command(ranks, program, f"--folder={folder}")).stdout)
            if resumed["sum"] != saved["sum"]:
                sys.exit(f"bench: another state was resumed: {resumed} {saved}")
            memory.add("ddprun", resumed["extra_bytes"] / 2**20)
            duration.add("ddprun", resumed["seconds"])
    most = max(memory.samples["ddprun"])
    memory.bar("≤ 128 MiB", most, most <= 128)
    yield memory
    yield duration
