"""A restart of a Python training: with processes that wait for it, without, and torchrun's."""

import tempfile

from benchmarks.programs import DDPRUN, ROOT, TORCHRUN
from benchmarks.restarts import WORKERS, Training, add_kills, ddprun_with, measure_waiting
from benchmarks.table import Row

MANY = 8
TRIES = 12  # jobs of torchrun
PROGRAM = [str(ROOT / "tests/bench/standby_training.py")]


def bench_standby(quick):
    line = Row("Python DDP, SIGKILL of 1 of 2 ranks to the first line of all new ones", "ms")
    step = Row("the same to the first step of all", "ms")
    own = Row("a waiting standby: memory of its own", "MiB")
    woken = Row("a waiting standby: context switches in 10 s", "", digits=0)
    zygote = Row("the process that forks them: memory of its own", "MiB")
    many = Row(f"start of {MANY} Python workers to the first DDP step of the last", "ms", digits=0)
    over_floor = []

    def ddprun(folder, standby):
        return Training(folder, ddprun_with(standby, folder), PROGRAM)

    for _ in range(1 if quick else 4):
        with tempfile.TemporaryDirectory() as folder, ddprun(folder, "auto") as training:
            for number in range(2 if quick else 8):
                training.until(training.standbys_wait)
                killed, to_line, to_step = training.kill(number)
                exits = training.exits_ms(number, killed)
                line.add("ddprun", to_line)
                line.add("floor", exits)
                step.add("ddprun", to_step)
                over_floor.append(to_line - exits)
            training.until(training.standbys_wait)
            measure_waiting(training, zygote, own, woken)
        with tempfile.TemporaryDirectory() as folder, ddprun(folder, "off") as training:
            add_kills(training, 1 if quick else 3, line, step, "without")
    # Its workers do not always find each other after a restart: then the job does not go on, and there is another one.
    for _ in range(TRIES):
        if len(step.samples.get("torchrun", [])) >= (1 if quick else 4):
            break
        words = [TORCHRUN, "--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=100"]
        with tempfile.TemporaryDirectory() as folder, Training(folder, words, PROGRAM, limit_s=20) as training:
            add_kills(training, 1 if quick else 3, line, step, "torchrun")
    for _ in range(1 if quick else 4):
        for name, command in (("ddprun", [DDPRUN, "--standby=auto"]), ("torchrun", [TORCHRUN, "--standalone"])):
            words = [*command, f"--nproc-per-node={MANY}", "--max-restarts=1"]
            with tempfile.TemporaryDirectory() as folder, Training(folder, words, PROGRAM, workers=MANY) as training:
                first = training.until(lambda: training.of_round(0))
                many.add(name, (max(first["step"].values()) - training.begun) / 1e6)
    over_floor.sort()
    more = over_floor[len(over_floor) // 2]
    line.bar("≤ exits + 8 ms", more, more <= 8)
    step.bar("≤ 300 ms", step.median("ddprun"), step.median("ddprun") <= 300)
    for name, what in (("torchrun", "≥ 12 × faster than torchrun"), ("without", "× faster than --standby=off")):
        if name in step.samples:
            ratio = step.ratio(name, "ddprun")
            step.bar(what, ratio, ratio >= (12 if name == "torchrun" else 1))
    own.bar("≤ 4 MiB", max(own.samples["ddprun"]), max(own.samples["ddprun"]) <= 4)
    woken.bar("none", max(woken.samples["ddprun"]), max(woken.samples["ddprun"]) == 0)
    many.bar("≥ 2 × faster than torchrun", many.ratio("torchrun", "ddprun"), many.ratio("torchrun", "ddprun") >= 2)
    yield from (line, step, own, woken, zygote, many)
