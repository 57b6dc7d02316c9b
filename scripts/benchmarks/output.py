"""What workers print: floods of it, logs, a console that nobody reads."""

import fcntl
import os
import pathlib
import subprocess
import sys
import tempfile
import termios
import time

from benchmarks.launch import await_stamps, restart_times
from benchmarks.programs import (BUILD, DDPRUN, TORCHRUN, WORKER, ddprun_command, environment, memory_kib,
                                 run_timer, torchrun_command)
from benchmarks.table import Row


def pour_lines(rank, stream, first, last):
    """What `pour` of the test worker writes."""
    return b"".join(f"{rank} {stream} {number:010d} ".ljust(119, ".").encode() + b"\n" for number in range(first, last))


def bytes_not_as_poured(file, rank, stream, lines):
    """How much is missing, too much, or somewhere else than it should be."""
    wrong = 0
    with file.open("rb") as log:
        for first in range(0, lines, 10_000):
            expected = pour_lines(rank, stream, first, min(first + 10_000, lines))
            found = log.read(len(expected))
            if found != expected:
                wrong += max(len(expected) - len(found), sum(a != b for a, b in zip(expected, found)))
        return wrong + len(log.read())


def await_that(holds, launcher, what):
    deadline = time.monotonic() + 600
    while not holds():
        if launcher.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"bench: {' '.join(map(str, launcher.args))} did not come to: {what}")
        time.sleep(0.005)


def pour(command_of, option, workers, rate, seconds):
    """Workers that print all the time: how long until every byte is in its file, how much memory the launcher has taken
    then, how many bytes are not what they should be, how long until the console (which is read) has it, and how much."""
    lines = rate * seconds * 1_000_000 // 240
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = [WORKER, "stamp", name, "pour", f"{lines}@{rate}", "touch", name + "/poured.{rank}", "until", name + "/go"]
        command = command_of(workers, *program, options=[f"--log-dir={name}/logs", option])
        with (folder / "console").open("wb") as console:
            reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            counter = subprocess.Popen(["wc", "-l"], stdin=reader.stdout, stdout=console)
            launcher = subprocess.Popen(command, stdout=reader.stdin, stderr=reader.stdin, env=environment())
        reader.stdin.close()
        reader.stdout.close()
        try:
            began_at = max(at for at, _ in await_stamps(folder, 0, workers, launcher)) / 1e9

            def files(stream):
                return {int(path.parent.name): path for path in folder.glob(f"logs/*/attempt_0/*/std{stream}.log")}

            def all_is_there():
                found = [*files("out").values(), *files("err").values()]
                return len(found) == 2 * workers and all(path.stat().st_size >= 120 * lines for path in found)

            await_that(lambda: len(list(folder.glob("poured.[0-9]"))) == workers, launcher, "all workers have printed")
            await_that(all_is_there, launcher, "all is in the files")
            in_files = time.monotonic() - began_at
            peak = memory_kib(launcher.pid, "VmHWM") / 1024
            (folder / "go").touch()
            launcher.wait()
            counter.wait()
            in_console = time.monotonic() - began_at
            wrong = sum(bytes_not_as_poured(path, rank, stream, lines)
                        for stream in ("out", "err") for rank, path in files(stream).items())
            shown = int((folder / "console").read_text()) / (2 * workers * lines)
            return {"in_files": in_files, "peak": peak, "wrong": wrong, "in_console": in_console, "shown": shown}
        finally:
            launcher.terminate()
            launcher.wait()
            reader.wait()
            counter.wait()


def bench_pour(quick):
    workers, rate, seconds = 8, 12, 2 if quick else 10
    what = f"{workers} × {rate} MB/s for {seconds} s, "
    for option in ("-r3", "-t3"):
        time_row = Row(f"{what}{option}: all in the files", "s", digits=2)
        memory_row = Row(f"{what}{option}: peak memory", "MiB")
        wrong = 0
        for _ in range(1 if quick else 3):
            figures = pour(ddprun_command, option, workers, rate, seconds)
            time_row.add("ddprun", figures["in_files"])
            memory_row.add("ddprun", figures["peak"])
            wrong += figures["wrong"]
            print(f"{option}: ddprun {figures}", file=sys.stderr)
        figures = pour(torchrun_command, option, workers, rate, seconds)
        print(f"{option}: torchrun {figures}", file=sys.stderr)
        time_row.add("torchrun", figures["in_files"])
        memory_row.add("torchrun", figures["peak"])
        time_row.bar("bytes missing or misplaced: 0", wrong, wrong == 0)
        late = time_row.median("ddprun") - seconds
        time_row.bar("workers slowed down ≤ 0.5 s", late, late <= 0.5)
        worst = max(memory_row.samples["ddprun"])
        memory_row.bar("≤ 32 MiB", worst, worst <= 32)
        yield time_row
        yield memory_row


def reactions_to_a_death(command_of, options, kills):
    """Restart times while launcher and workers print into a full pipe that nobody reads."""
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)

    def is_full():
        waiting = fcntl.ioctl(reading, termios.FIONREAD, b"\0\0\0\0")
        return int.from_bytes(waiting, sys.byteorder) >= size * 3 // 4

    try:
        yield from restart_times(command_of, kills, options=options, work="pour 1000000000@12", console=writing, ready=is_full)
    finally:
        os.close(reading)
        os.close(writing)


def bench_output(quick):
    """With logging on: the life cycle's bars, floods of output, a console that nobody reads."""
    row = Row("--help", "ms", digits=2)
    for _ in range(1 if quick else 5):
        for _, line in run_timer(10, [DDPRUN, "--help"]):
            row.add("ddprun", line["seconds"] * 1e3)
        for _, line in run_timer(1, [TORCHRUN, "--help"]):
            row.add("torchrun", line["seconds"] * 1e3)
    row.bar("median ≤ 5 ms", row.median("ddprun"), row.median("ddprun") <= 5)
    yield row

    row = Row("launch 2 × /bin/true, -t3 --log-dir", "ms", digits=2)
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--log-dir={folder}", "-t3"]
        floor = [str(BUILD / "bench/bare_spawn"), "2", "/bin/true"]
        for _ in range(2 if quick else 7):
            for index, line in run_timer(10, floor, ddprun_command(2, "/bin/true", options=options)):
                row.add(("floor", "ddprun")[index], line["seconds"] * 1e3)
            for _, line in run_timer(1, torchrun_command(2, "/bin/true", options=options)):
                row.add("torchrun", line["seconds"] * 1e3)
    ratio = row.ratio("ddprun", "floor")
    row.bar("≤ 3 × the floor", ratio, ratio <= 3)
    yield row

    logging = ["--log-dir={folder}/logs", "-t3"]
    row = Row("SIGKILL of 1 of 2 workers to the new group, -t3 --log-dir", "ms", digits=2)
    for _ in range(1 if quick else 5):
        for sample in restart_times(ddprun_command, kills=10, options=logging):
            row.add("ddprun", sample)
        for sample in restart_times(torchrun_command, kills=4, options=logging):
            row.add("torchrun", sample)
    row.bar("median ≤ 15 ms", row.median("ddprun"), row.median("ddprun") <= 15)
    yield row

    for what, options in (("with log files", logging), ("without", ["--log-line-prefix-template=[${rank}]:"])):
        row = Row(f"the same while the console is a full pipe, {what}", "ms", digits=2)
        for sample in reactions_to_a_death(ddprun_command, options, kills=5 if quick else 25):
            row.add("ddprun", sample)
        worst = max(row.samples["ddprun"])
        row.bar("median ≤ 20 ms", row.median("ddprun"), row.median("ddprun") <= 20)
        row.bar("slowest ≤ 20 ms", worst, worst <= 20)
        yield row

    yield from bench_pour(quick)
