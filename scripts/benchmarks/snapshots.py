"""Snapshots in the agent's memory: what they cost, and what the death of all ranks costs with them."""

import json
import pathlib
import subprocess
import tempfile

from benchmarks.programs import BUILD, DDPCTL, ddprun_command, run
from benchmarks.replace import JOB, PYTHON_VARIABLES, Training, ddprun_with
from benchmarks.table import Row

EVERY = 2  # one of this program costs less than a hundredth of a step

# As bench/snapshot_copy measures it: tensors that are equal on both ranks, and the first two of each are not counted. A rank
# compares another rank's share, too: to sum its bytes is the floor of that. A restart of the round gives kept() something to read.
PYTHON_PROGRAM = '''
import ctypes, json, os, statistics, sys, time
import torch
import torch.distributed as dist
import ddprun
from ddprun import keeping

tensors, elements = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
size = tensors * elements * 4
source, copy = (torch.ones(size // 4, dtype=torch.float32) for _ in range(2))


def timed(work):
    dist.barrier()
    begun = time.perf_counter()
    result = work()
    return (time.perf_counter() - begun) * 1e3, result


def of_copy(size):
    return timed(lambda: ctypes.memmove(copy.data_ptr(), source.data_ptr(), size))[0]


def of_sum(size):
    return timed(lambda: keeping._of_process()._memory.sum(source.data_ptr(), size))[0]


if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    whole = statistics.median(of_copy(size) for _ in range(5))
    took, kept = timed(ddprun.kept)
    made = statistics.median(timed(lambda: [torch.empty(elements) for _ in range(tensors)])[0] for _ in range(5))
    again = statistics.median(timed(ddprun.kept)[0] for _ in range(5))
    assert kept.step == 12 and all(float(each[0]) == number for number, each in enumerate(kept.replicated))
    if rank == 0:
        print(json.dumps({"resume_ms": again, "first_resume_ms": took, "made_ms": made, "whole_ms": whole}))
    sys.exit(0)
state = [torch.full((elements,), float(number)) for number in range(tensors)]
keep, share, compared = [], [], []
for step in range(13):
    share.append(of_copy(size // world))
    compared.append(of_sum(size // world))
    keep.append(timed(lambda: ddprun.keep(step, replicated=state))[0])
if rank == 0:
    print(json.dumps({"keep_ms": statistics.median(keep[2:]), "first_keep_ms": keep[0], "share_ms": statistics.median(share[2:]),
                      "compare_ms": statistics.median(compared[2:])}), flush=True)
dist.barrier()
sys.exit(1)
'''


def copies(quick, *options):
    """One line of bench/snapshot_copy after the other."""
    for _ in range(1 if quick else 5):
        with tempfile.TemporaryDirectory() as folder:
            command = ddprun_command(2, "--no-python", str(BUILD / "bench/snapshot_copy"), f"--folder={folder}", *options,
                                     options=["--max-restarts=1"])
            yield json.loads(run(command).stdout)


def in_python(quick, tensors, elements):
    """What one run says after the other."""
    for _ in range(1 if quick else 5):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program.py"
            program.write_text(PYTHON_PROGRAM)
            command = ddprun_command(2, str(program), str(tensors), str(elements), options=["--max-restarts=1"])
            kept, read = map(json.loads, run(command, **PYTHON_VARIABLES).stdout.splitlines())
            yield {**kept, **read}


def rows_of_python(quick):
    block = Row("ddprun.keep() of 300 MB in Python blocks the step, 2 ranks (floor: a memcpy of a rank's share, and a sum of another "
                "rank's, which it compares)", "ms")
    first = Row("the first one, which compares all with all ranks", "ms")
    back = Row("ddprun.kept() of it (floor: a memcpy of all of it)", "ms")
    for line in in_python(quick, 75, 1_000_000):
        block.add("floor", line["share_ms"] + line["compare_ms"])
        block.add("ddprun", line["keep_ms"])
        first.add("ddprun", line["first_keep_ms"])
        back.add("floor", line["whole_ms"])
        back.add("ddprun", line["resume_ms"])
    block.bar("≤ 1.2 × the floor", block.ratio("ddprun", "floor"), block.ratio("ddprun", "floor") <= 1.2)
    yield block
    yield first
    yield back
    there = Row("ddprun.keep() of 4,000 small tensors in Python", "ms")
    again = Row("ddprun.kept() of them (floor: to make 4,000 empty ones)", "ms")
    for line in in_python(quick, 4000, 1):
        there.add("ddprun", line["keep_ms"])
        again.add("floor", line["made_ms"])
        again.add("ddprun", line["resume_ms"])
    there.bar("≤ 5 ms", there.median("ddprun"), there.median("ddprun") <= 5)
    yield there
    yield again


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
    yield from rows_of_python(quick)
