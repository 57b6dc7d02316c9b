"""Snapshots in the agent's memory: what they cost, and what the death of all ranks costs with them."""

import json
import subprocess
import tempfile

from benchmarks.programs import BUILD, DDPCTL, ddprun_command, run
from benchmarks.replace import JOB, Training, ddprun_with
from benchmarks.table import Row

EVERY = 5


def copies(quick, *options):
    """One line of bench/snapshot_copy after the other."""
    for _ in range(1 if quick else 5):
        with tempfile.TemporaryDirectory() as folder:
            command = ddprun_command(2, "--no-python", str(BUILD / "bench/snapshot_copy"), f"--folder={folder}", *options,
                                     options=["--max-restarts=1"])
            yield json.loads(run(command).stdout)


def bench_snapshots(quick):
    block = Row("a snapshot of 300 MB in memory blocks the step, 2 ranks (floor: a memcpy of a rank's share)", "ms")
    back = Row("reading it back, 2 ranks (floor: a memcpy of all of it)", "ms")
    for line in copies(quick):
        block.add("floor", line["share_ms"])
        block.add("ddprun", line["keep_ms"])
        back.add("floor", line["whole_ms"])
        back.add("ddprun", line["resume_ms"])
    block.bar("≤ 1.2 × one memcpy", block.ratio("ddprun", "floor"), block.ratio("ddprun", "floor") <= 1.2)
    yield block
    back.bar("≤ 1.25 × one memcpy", back.ratio("ddprun", "floor"), back.ratio("ddprun", "floor") <= 1.25)
    yield back

    there, again = Row("a snapshot of 4,000 small tensors", "ms"), Row("reading 4,000 small tensors back", "ms")
    for line in copies(quick, "--tensors=4000", "--elements=1"):
        there.add("ddprun", line["keep_ms"])
        again.add("ddprun", line["resume_ms"])
    for row in (there, again):
        row.bar("≤ 5 ms", row.median("ddprun"), row.median("ddprun") <= 5)
        yield row

    killed = Row(f"SIGKILL of both ranks to the next step, shm, from memory, {EVERY} steps between snapshots", "ms")
    repeated = Row("steps that were made twice then, at most", "", digits=0)
    with tempfile.TemporaryDirectory() as folder:
        with Training(folder, ddprun_with(folder, 2), "shm", 2, [f"--memory-every={EVERY}"]) as training:
            for _ in range(3 if quick else 25):
                took, steps = training.kill_all()
                killed.add("ddprun", took)
                repeated.add("ddprun", steps)
    killed.bar("median ≤ 100 ms", killed.median("ddprun"), killed.median("ddprun") <= 100)
    yield killed
    most = max(repeated.samples["ddprun"])
    repeated.bar(f"≤ {EVERY}", most, most <= EVERY)
    yield repeated

    anew = Row("SIGKILL of ddprun, which is started again at once with --keep-memory, to the next step, shm, 2 ranks", "ms")
    with tempfile.TemporaryDirectory() as folder:
        kept = ddprun_with(folder, 2, options=("--no-python", "--keep-memory=600"))
        with Training(folder, kept, "shm", 2, ["--memory-every=1"]) as training:
            for _ in range(3 if quick else 10):
                anew.add("ddprun", training.kill_agent())
        subprocess.run([DDPCTL, "forget", JOB], env=training.environment, check=True, stdout=subprocess.DEVNULL)
    anew.bar("median ≤ 1000 ms", anew.median("ddprun"), anew.median("ddprun") <= 1000)
    yield anew
