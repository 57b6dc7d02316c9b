"""What the ranks of one node exchange through shared memory, beside Gloo, and the training step it is for."""

import json
import os
import statistics
import sys
import time

from benchmarks.programs import BUILD, ROOT, TORCHRUN, ddprun_command, run
from benchmarks.table import Row

WORKERS = 2
CROWD = 8
ALL_REDUCE_BARS = {"1000": 30, "55000": 8, "250000": 4, "2800000": 2.5}
STEP_BARS = {"mlp_64": 1.8, "mlp_256": 1.4, "mlp_1024": 1.1}
JOIN_BAR_MS = 5
INDEPENDENT_BAR = 1.25


def backends(turn):
    """Who is called what in the table, and its --backend: each goes first in every other turn."""
    return (("ddprun", "shm"), ("Gloo", "gloo"))[::1 if turn % 2 == 0 else -1]


def lines_of(command):
    return [json.loads(line) for line in run(command).stdout.splitlines()]


def all_reduces(quick):
    rows = {count: Row(f"all_reduce of {int(count):,} float32, {WORKERS} ranks (peer: Gloo)", "µs")
            for count in ALL_REDUCE_BARS}
    join = Row(f"joining a group of {WORKERS} over shared memory (peer: Gloo)", "ms", digits=2)
    ratios = {count: [] for count in rows}
    for pair in range(2 if quick else 15):
        medians = {}
        for name, backend in backends(pair):
            figures, = lines_of(ddprun_command(WORKERS, str(BUILD / "bench/all_reduce"), f"--backend={backend}",
                                           f"--share={0.1 if quick else 1}"))
            join.add(name, figures["join_ms"])
            medians[name] = figures["median_us"]
            for count, row in rows.items():
                row.add(name, figures["median_us"][count])
        for count in rows:
            ratios[count].append(medians["Gloo"][count] / medians["ddprun"][count])
    for count, row in rows.items():
        ratio = statistics.median(ratios[count])
        row.bar(f"median of pairs ≥ {ALL_REDUCE_BARS[count]} × faster than Gloo", ratio, ratio >= ALL_REDUCE_BARS[count])
        yield row
    join.bar(f"≤ {JOIN_BAR_MS} ms", join.median("ddprun"), join.median("ddprun") <= JOIN_BAR_MS)
    yield join


def crowded(quick):
    """More ranks than cores: who waits must leave its core to those who work."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    rows = {count: Row(f"all_reduce of {int(count):,} float32, {CROWD} ranks on 2 cores (peer: Gloo)", "µs")
            for count in ALL_REDUCE_BARS}
    for pair in range(1 if quick else 5):
        for name, backend in backends(pair):
            figures, = lines_of(["taskset", "--cpu-list", cores, *ddprun_command(
                CROWD, str(BUILD / "bench/all_reduce"), f"--backend={backend}", f"--share={0.02 if quick else 0.2}")])
            for count, row in rows.items():
                row.add(name, figures["median_us"][count])
    for row in rows.values():
        ratio = row.ratio("ddprun", "Gloo")
        row.bar("not slower than Gloo", ratio, ratio <= 1)
        yield row


def steps(quick):
    share = f"--share={0.1 if quick else 0.4}"
    program = [str(BUILD / "bench/ddp_step"), "--mlps", share]
    contestants = [("ddprun", ddprun_command(WORKERS, *program, "--backend=shm")),
                   ("floor", ddprun_command(WORKERS, *program, "--backend=none")),
                   ("torchrun", [TORCHRUN, "--standalone", f"--nproc-per-node={WORKERS}",
                                 str(ROOT / "tests/compat/ddp_step.py"), "--mlps", share]),
                   ("Gloo", ddprun_command(WORKERS, *program, "--backend=gloo"))]
    rows, ratios, losses = {}, {}, {}
    for turn in range(1 if quick else 25):
        medians = {}
        for name, command in contestants if turn % 2 == 0 else contestants[::-1]:
            for line in lines_of(command):
                # The slower of two that are on their own.
                of_model = medians.setdefault(line["model"], {})
                of_model[name] = max(of_model.get(name, 0), line["median_us"] / 1e3)
                if name != "floor":
                    losses.setdefault(line["model"], set()).add(line["loss"])
        for model, of_model in medians.items():
            row = rows.setdefault(model, Row(f"DDP step over shared memory, {WORKERS} ranks, {model} "
                                             "(floor: two that do not talk)", "ms", digits=3))
            for name, median in of_model.items():
                row.add(name, median)
            ratios.setdefault(model, []).append(
                (of_model["ddprun"] / of_model["floor"], of_model["torchrun"] / of_model["ddprun"]))
    for model, row in rows.items():
        if len(losses[model]) != 1:
            sys.exit(f"bench: {model} did not end with the same loss everywhere: {losses[model]}")
        to_floor, to_python = map(statistics.median, zip(*ratios[model]))
        row.bar(f"≤ {INDEPENDENT_BAR} × two that do not talk", to_floor, to_floor <= INDEPENDENT_BAR)
        row.bar(f"≥ {STEP_BARS[model]} × faster than PyTorch", to_python, to_python >= STEP_BARS[model])
        yield row


def demo(quick):
    row = Row(f"an epoch of the demo, {WORKERS} ranks, start to end (peer: Gloo)", "s", digits=2)
    for turn in range(1 if quick else 5):
        for name, backend in backends(turn):
            begun = time.monotonic()
            run(ddprun_command(WORKERS, str(BUILD / "bin/train"), "--epochs=1", f"--limit={6000 if quick else 0}",
                               f"--backend={backend}"))
            row.add(name, time.monotonic() - begun)
    yield row


def bench_shm(quick):
    yield from all_reduces(quick)
    yield from crowded(quick)
    yield from steps(quick)
    yield from demo(quick)
