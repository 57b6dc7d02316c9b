"""Python's torch.distributed over ddprun.torch's backend shm, beside Gloo."""

import json
import os
import statistics
import sys

from benchmarks.programs import BUILD, PYTHON, ROOT, ddprun_command, run
from benchmarks.table import Row

WORKERS = 2
CROWD = 8
ALL_REDUCE_BARS = {"1000": 10, "55000": 6, "250000": 4, "2800000": 2.5}
STEP_BARS = {"mlp_64": 1.4, "mlp_256": 1.4, "mlp_1024": 1.15}
IMPORT_BAR_MS = 30
NAMES = {"ddprun": "shm", "Gloo": "gloo"}


def python(workers, program, *arguments):
    return ddprun_command(workers, PYTHON, str(ROOT / "tests/compat" / program), *arguments)


def lines_of(command):
    return [json.loads(line) for line in run(command, PYTHONPATH=str(BUILD / "python")).stdout.splitlines()]


def all_reduce_rows(ranks, where=""):
    return {count: Row(f"Python's all_reduce of {int(count):,} float32, {ranks} ranks{where} (peer: Gloo)", "µs")
            for count in ALL_REDUCE_BARS}


def add_medians(rows, medians):
    for count, row in rows.items():
        for name, backend in NAMES.items():
            row.add(name, medians[backend][count])


def all_reduces(quick):
    rows = all_reduce_rows(WORKERS)
    imports = Row("import ddprun.torch, after torch", "ms")
    for _ in range(2 if quick else 7):
        figures, = lines_of(python(WORKERS, "torch_all_reduce.py", f"--share={0.1 if quick else 1}"))
        add_medians(rows, figures["median_us"])
        imports.add("ddprun", figures["import_ms"])
    for count, row in rows.items():
        ratio = row.ratio("Gloo", "ddprun")
        row.bar(f"≥ {ALL_REDUCE_BARS[count]} × faster than Gloo", ratio, ratio >= ALL_REDUCE_BARS[count])
        yield row
    cost = imports.median("ddprun")
    imports.bar(f"≤ {IMPORT_BAR_MS} ms", cost, cost <= IMPORT_BAR_MS)
    yield imports


def crowded(quick):
    """More ranks than cores: who waits must leave its core to those who work."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    rows = all_reduce_rows(CROWD, " on 2 cores")
    for _ in range(1 if quick else 3):
        figures, = lines_of(["taskset", "--cpu-list", cores,
                             *python(CROWD, "torch_all_reduce.py", f"--share={0.05 if quick else 0.2}")])
        add_medians(rows, figures["median_us"])
    for row in rows.values():
        ratio = row.ratio("ddprun", "Gloo")
        row.bar("not slower than Gloo", ratio, ratio <= 1)
        yield row


def steps(quick):
    rows, ratios, losses = {}, {}, {}
    for turn in range(1 if quick else 9):
        medians = {}
        for name, backend in list(NAMES.items())[::1 if turn % 2 == 0 else -1]:
            for line in lines_of(python(WORKERS, "ddp_step.py", "--mlps", f"--backend={backend}",
                                        f"--share={0.1 if quick else 0.4}")):
                model = line["model"]
                row = rows.setdefault(model, Row(f"Python's DDP step over shm, {WORKERS} ranks, {model} (peer: Gloo)",
                                                 "ms", digits=3))
                row.add(name, line["median_us"] / 1e3)
                medians.setdefault(model, {})[name] = line["median_us"]
                losses.setdefault(model, set()).add(line["loss"])
        for model, of_model in medians.items():
            ratios.setdefault(model, []).append(of_model["Gloo"] / of_model["ddprun"])
    for model, row in rows.items():
        if len(losses[model]) != 1:
            sys.exit(f"bench: {model} did not end with the same loss over shm and Gloo: {losses[model]}")
        ratio = statistics.median(ratios[model])
        row.bar(f"median of pairs ≥ {STEP_BARS[model]} × faster than Gloo", ratio, ratio >= STEP_BARS[model])
        yield row


def bench_torch_shm(quick):
    yield from all_reduces(quick)
    yield from crowded(quick)
    yield from steps(quick)
