"""A restart of a program that is linked with worker_lib: with processes that wait in its Context, without, torchrun's."""

import os
import statistics
import tempfile
import time

from benchmarks import replace
from benchmarks.programs import BUILD, TORCHRUN
from benchmarks.restarts import WORKERS, Training, add_kills, cpu_seconds, ddprun_with, measure_waiting, waiting_processes
from benchmarks.table import Row

PROGRAM = [str(BUILD / "bench/standby_training_program")]
TORCHRUN_COMMAND = [TORCHRUN, "--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=100", "--no-python"]


def first_step_ms(seen):
    """Of the rank that took longest, where `seen` is what Training.of_round() gives."""
    return max(seen["step"][rank] - seen["setup"][rank] for rank in range(WORKERS)) / 1e6


def training(folder, standby):
    return Training(folder, ddprun_with(standby, folder), PROGRAM)


def a_kill_per_second(job, rounds, first):
    """The part of the machine that those who wait and those who make them take, with a kill in each second."""
    forks, *waiting = waiting_processes(job)
    begun, began = cpu_seconds(forks), time.monotonic()
    of_standbys = 0
    for number in range(first, first + rounds):
        of_standbys += sum(map(cpu_seconds, waiting))  # before they are workers
        begins = time.monotonic()
        job.kill(number)
        job.until(job.standbys_wait)
        time.sleep(max(0, begins + 1 - time.monotonic()))
        waiting = waiting_processes(job)[1:]
    cores = len(os.sched_getaffinity(0))
    return 100 * (cpu_seconds(forks) - begun + of_standbys) / (time.monotonic() - began) / cores


def of_train(quick, floor):
    """The example train, which is replaced in place: nobody exits, and no set-up is made again."""
    row = Row("the example train, which is replaced in place: SIGKILL of 1 of 2 ranks to the next committed step of all", "ms")
    with tempfile.TemporaryDirectory() as folder, \
            replace.Training(folder, replace.ddprun_with(folder, WORKERS), "shm", WORKERS) as training:
        training.until(lambda: training.steps() > 5)
        for _ in range(3 if quick else 20):
            row.add("ddprun", training.kill_in_place())
    for each in floor:
        row.add("floor", each)
    more = row.median("ddprun") - row.median("floor")
    row.bar("≤ floor + 20 ms", more, more <= 20)
    return row


def bench_standby_program(quick):
    line = Row(f"C++ DDP over shm, SIGKILL of 1 of {WORKERS} ranks to the first line of all new ones", "ms")
    step = Row("the same to the first step of all (floor: the exits, data and checkpoint)", "ms")
    first = Row("that first step alone (floor: that of a start where nobody was killed)", "ms")
    later = Row("a later step of it", "ms")
    own = Row("a waiting standby of a C++ program: memory of its own", "MiB")
    woken = Row("it and the parked copy: context switches in 10 s", "", digits=0)
    parked = Row("the parked copy of a C++ program: memory of its own", "MiB")
    busy = Row("a kill per second: CPU for standbys, of the whole machine", "%", digits=2)
    over_exits, over_set_up = [], []
    for _ in range(1 if quick else 4):
        with tempfile.TemporaryDirectory() as folder, training(folder, "auto") as job:
            rounds = 2 if quick else 8
            for number in range(rounds):
                job.until(job.standbys_wait)
                job.until(lambda: len((job.of_round(number) or {"later": ()})["later"]) == WORKERS)
                killed, to_line, to_step = job.kill(number)
                exits = job.exits_ms(number, killed)
                after = job.of_round(number + 1)
                set_up = max(after["setup"][rank] - after["line"][rank] for rank in range(WORKERS)) / 1e6
                line.add("ddprun", to_line)
                line.add("floor", exits)
                step.add("ddprun", to_step)
                step.add("floor", exits + set_up)
                first.add("ddprun", first_step_ms(after))
                over_exits.append(to_line - exits)
                over_set_up.append(to_step - exits - set_up)
            job.until(job.standbys_wait)
            for number in range(rounds):
                later.add("ddprun", max(job.of_round(number)["later"].values()) / 1e6)
            measure_waiting(job, parked, own, woken)
            busy.add("ddprun", a_kill_per_second(job, 5 if quick else 15, rounds))
        for name in ("torchrun", "without"):
            with tempfile.TemporaryDirectory() as folder, \
                    (Training(folder, TORCHRUN_COMMAND, PROGRAM) if name == "torchrun" else training(folder, "off")) as job:
                add_kills(job, 1 if quick else 3, line, step, name)
                if name == "without":
                    first.add("floor", first_step_ms(job.of_round(0)))
    more = statistics.median(over_exits)
    line.bar("≤ exits + 8 ms", more, more <= 8)
    more = statistics.median(over_set_up)
    step.bar("≤ floor + 20 ms", more, more <= 20)
    own.bar("≤ 4 MiB", max(own.samples["ddprun"]), max(own.samples["ddprun"]) <= 4)
    woken.bar("none", max(woken.samples["ddprun"]), max(woken.samples["ddprun"]) == 0)
    parked.bar("≤ 80 MiB", max(parked.samples["ddprun"]), max(parked.samples["ddprun"]) <= 80)
    busy.bar("≤ 5 %", busy.median("ddprun"), busy.median("ddprun") <= 5)
    yield from (line, step, of_train(quick, step.samples["floor"]), first, later, own, woken, parked, busy)
