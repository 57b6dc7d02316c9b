#!/usr/bin/env python3
"""The live page in a real browser: its numbers are read back and compared with those of a simulated job.

    page.py SIMULATED_JOB                      the test; ends with 77 where there is no Chromium
    page.py SIMULATED_JOB --screenshots DIR    also leaves pictures there, light and dark, narrow and wide
"""

import math
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from browser import Browser  # noqa: E402

DEADLINE_S = 30
HOSTILE = "</script><img src=x onerror=alert(1)>\\nValueError: loss is NaN"


class SimulatedJob:
    def __init__(self, program, ranks, *more):
        self.process = subprocess.Popen([program, str(ranks), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline().split()[1])}/"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n", command


def awaits(what, holds):
    """The value of holds() once it is one."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        if time.monotonic() > deadline:
            sys.exit(f"page: {what}: it did not come to that")
        time.sleep(0.02)
    return found


def shows(browser, element, wanted):
    deadline = time.monotonic() + DEADLINE_S
    while (found := browser.text(element)) != wanted:
        if time.monotonic() > deadline:
            sys.exit(f"page: #{element} is {found!r} and not {wanted!r}")
        time.sleep(0.02)


def same(what, found, wanted):
    if found != wanted:
        sys.exit(f"page: {what} is {found!r} and not {wanted!r}")


def has_no_errors(browser):
    same("what the browser complains of", browser.errors, [])


def test_numbers(browser, program):
    with SimulatedJob(program, 8) as job:
        browser.open(job.url)
        shows(browser, "step-more", "no step was reported yet")
        shows(browser, "goodput", "–")
        shows(browser, "down", "no step was reported yet")
        job.do("advance 412")
        shows(browser, "goodput", "100.0 %")
        shows(browser, "down", "0 ms down, start 1.2 s")
        shows(browser, "step", "412")
        shows(browser, "step-more", "of 20,000")
        shows(browser, "program", "train.py")
        shows(browser, "run", "job llm-7 · seen from b100")
        shows(browser, "state", "running")
        shows(browser, "world", "8")
        shows(browser, "nodes", "1 node")
        shows(browser, "round", "0")
        shows(browser, "budget", "0 of 3 restarts spent")
        shows(browser, "failure-title", "None so far.")
        shows(browser, "grid-summary", "")

        job.do("behind 5 7")
        shows(browser, "step", "405 – 412")
        awaits("rank 5 is furthest behind",
               lambda: browser.value("document.querySelector('#behind tr').innerText").split("\t")[:3]
               == ["5", "b100", "405 (−7)"])

        job.do(f"fail 3 {HOSTILE}")
        shows(browser, "round", "1")
        shows(browser, "budget", "1 of 3 restarts spent")
        shows(browser, "failure-title", "Rank 3 on b100 ended with exit code 1.")
        shows(browser, "failure-more", "round 0 · local rank 3 · pid 4003 · at step 412 of 20,000 · in: running")
        shows(browser, "failure-message", HOSTILE.replace("\\n", "\n"))
        same("what the message made of the page", browser.value("document.images.length"), 0)
        shows(browser, "restarts-summary", "1")
        shows(browser, "causes", "start 1.2 s · worker failed 1 × (40 ms down)")
        shows(browser, "step", "400")  # all are back at the checkpoint

        job.do("finish train.py succeeded")
        shows(browser, "banner", "The job has ended. train.py succeeded")
        shows(browser, "state", "ended")
    has_no_errors(browser)


def test_waiting_for_nodes(browser, program):
    with SimulatedJob(program, 24) as job:
        job.do("await 2")
        browser.open(job.url)
        shows(browser, "state", "waiting")
        awaits("the banner says which nodes are missing", lambda: browser.text("banner").startswith(
            "Waiting for nodes: 1 of 3 are here; node ranks 1, 2 are missing; 14 min "))
        shows(browser, "world", "–")
        shows(browser, "nodes", "1 of 3 nodes, 2 missing")
        shows(browser, "grid-summary", "no round has run yet")
        shows(browser, "behind", "no worker is running")
        same("a head over no rows", browser.value("$('behind-head').hidden"), True)
        job.do("await 0")
        shows(browser, "state", "running")
        same("the banner", browser.text("banner"), "")
        shows(browser, "nodes", "3 nodes")
        same("the head of the rows", browser.value("$('behind-head').hidden"), False)
    has_no_errors(browser)


def test_a_job_that_ends_between_two_looks(browser, program):
    with SimulatedJob(program, 8) as job:
        browser.open(job.url)
        shows(browser, "goodput", "–")
        job.do("advance 20000")
        job.do("finish train.py succeeded")
        shows(browser, "state", "ended")
        shows(browser, "step", "20,000")
        shows(browser, "goodput", "100.0 %")
        shows(browser, "wall-title", "Ran for")
    has_no_errors(browser)


def test_the_loss(browser, program):
    with SimulatedJob(program, 8) as job:
        browser.open(job.url)
        awaits("how a loss is reported is said", lambda: "ddprun.progress.report(step, total, loss=loss)" in browser.text("loss-hint"))
        for step in (100, 200, 300):
            job.do("advance 100")
            shows(browser, "step", str(step))
        loss = 0.35 + 2.1 * math.exp(-300 / 900) + 0.05 * math.sin(300 * 0.37) * math.exp(-300 / 2500)
        shows(browser, "loss-now", f"{loss:.4g} at step 300")
        points = browser.value("known.loss")
        same("the steps of the curve", [step for step, _ in points], [100, 200, 300])
        job.do("fail 0 x")  # from step 300 as a checkpoint
        shows(browser, "round", "1")
        job.do("advance 50")
        shows(browser, "step", "350")
        same("the steps of the curve", [step for step, _ in browser.value("known.loss")], [100, 200, 300, 350])
        browser.open(job.url)
        awaits("a page that is opened later has the history", lambda: browser.value("known.loss.length") == 4)
    has_no_errors(browser)


LOOKS = "Object.fromEntries(view().all.map((one) => [one.rank, one.look]))"


def has_ended(browser, job):
    """What hung is shown as ended, also the ranks of another node, which was heard last while they ran."""
    job.do("finish train.py STOPPED by SIGTERM")
    shows(browser, "state", "ended")
    same("the banner", browser.text("banner"), "The job has ended. train.py STOPPED by SIGTERM")
    same("the looks", browser.value(LOOKS), {str(rank): "silent" for rank in range(16)})
    shows(browser, "legend-silent", "ended: 16")
    same("the rest of the legend", browser.value("[...document.querySelectorAll('#legend li')].filter((one) => !one.hidden).length"), 1)
    shows(browser, "grid-summary", "")
    shows(browser, "behind", "no worker is running")
    browser.value("grid.focus()")
    browser.press("ArrowRight")
    awaits("a rank of this node is described as it ended", lambda: " · cuda:0 · stopped · step " in browser.text("inspect"))
    for _ in range(8):
        browser.press("ArrowRight")
    awaits("one of another node, too", lambda: " · cuda:0 · ended · step " in browser.text("inspect"))


def test_a_hang(browser, program):
    with SimulatedJob(program, 16) as job:
        job.do("advance 100")
        browser.open(job.url)
        shows(browser, "step", "100")
        job.do("hang 11")
        job.do("age 120000")
        shows(browser, "grid-summary", "16 of 16 are late")
        shows(browser, "legend-awaited", "the others wait for it: 1")
        awaits("rank 11 is the one", lambda: browser.value("document.querySelector('#behind tr td').innerText") == "11")
        has_ended(browser, job)
    has_no_errors(browser)


def test_a_proven_hang(browser, program):
    sentence = "rank 11 is stopped by a signal; ranks 0-10, 12-15 wait for it in all_reduce 300 of group 0"
    with SimulatedJob(program, 16) as job:
        job.do("advance 100")
        browser.open(job.url)
        shows(browser, "state", "running")
        same("the banner", browser.text("banner"), "")
        job.do("hang 11")
        job.do("age 120000")
        job.do(f"prove 11 {sentence}")
        awaits("the banner has the sentence of ddpctl status",
               lambda: browser.text("banner").startswith(f"HUNG: {sentence}, for "))
        shows(browser, "state", "hung")
        shows(browser, "failure-title", "No worker has failed, but the job hangs.")
        shows(browser, "legend-hung", "hung: 1")
        shows(browser, "legend-waits", "wait for others: 15")
        same("the looks", browser.value(LOOKS), {str(rank): "hung" if rank == 11 else "waits" for rank in range(16)})
        # As it is drawn: the culprit is red, a victim is not.
        paint = """((rank) => { const c = cells.find((one) => one.one.rank === rank), s = window.devicePixelRatio || 1;
            const copy = document.createElement('canvas'); copy.width = grid.width; copy.height = grid.height;
            const pen = copy.getContext('2d', { willReadFrequently: true }); pen.drawImage(grid, 0, 0);
            return [...pen.getImageData((c.x + 8) * s, (c.y + 8) * s, 1, 1).data].slice(0, 3); })"""
        red, green, blue = browser.value(f"{paint}(11)")
        same("the culprit is red", red > 150 and red > 2 * green and red > 2 * blue, True)
        red, green, blue = browser.value(f"{paint}(3)")
        same("the victim is not red", abs(red - green) < 30, True)
        job.do("fail 11 killed")
        shows(browser, "state", "running")
        same("the banner after the restart", browser.text("banner"), "")
        job.do("hang 11")
        job.do("age 120000")
        job.do(f"prove 11 {sentence}")
        shows(browser, "state", "hung")
        has_ended(browser, job)
    has_no_errors(browser)


def test_a_connection_that_breaks(browser, program):
    with SimulatedJob(program, 4) as job:
        job.do("advance 5")
        browser.open(job.url)
        shows(browser, "step", "5")
    awaits("the page says that it hears nothing", lambda: browser.text("banner").startswith("No connection to the agent"))
    shows(browser, "link", "not connected")
    shows(browser, "step", "5")
    browser.errors.clear()  # of attempts to connect again


def test_a_thousand_ranks(browser, program):
    with SimulatedJob(program, 1024) as job:
        job.do("advance 50")
        browser.open(job.url)
        shows(browser, "world", "1,024")
        shows(browser, "nodes", "128 nodes")
        shows(browser, "step", "50")
        same("cells", browser.value("cells.length"), 1024)
        same("the ranks of the cells", browser.value("cells.every((c, i) => c.one.rank === i)"), True)
        same("ranks whose cells touch each other or the edge", browser.value("""cells.filter((a, i) =>
            a.x < 0 || a.y < 0 || a.x + a.w > grid.clientWidth || a.y + a.h > grid.clientHeight ||
            cells.some((b, j) => j > i && a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h)).length"""), 0)
        job.do("behind 777 3")
        awaits("rank 777 is furthest behind",
               lambda: browser.value("document.querySelector('#behind tr').innerText").split("\t")[:3] == ["777", "b197", "47 (−3)"])

        # Pointed at with the mouse, and found with the keys.
        x, y = browser.value("""(() => { grid.scrollIntoView(); const r = grid.getBoundingClientRect();
            const c = cells.find((one) => one.one.rank === 777); return [r.x + c.x + c.w / 2, r.y + c.y + c.h / 2]; })()""")
        browser.point_at(x, y)
        awaits("rank 777 is described", lambda: browser.text("inspect").startswith(
            "rank 777 · node 97 (b197) · local rank 1 · pid 4777 · cuda:1 · running · step 47 of 20,000 · last step "))
        browser.value("grid.focus()")
        browser.press("ArrowRight")
        awaits("the next rank is described", lambda: browser.text("inspect").startswith("rank 778 · "))

        # A step of all ranks: what the page does between two frames must leave the tab usable.
        worst = browser.value("""(async () => { const times = []; for (let i = 0; i < 10; i++) {
            const begin = performance.now(); learn({ at: known.at + 1, live: [...ranks.values()].map((one) =>
                [one.rank, one.state, one.phase, one.step + 1, known.at, 120000]) }); show(); times.push(performance.now() - begin); }
            return median(times); })()""")
        print(f"page: an update of 1,024 ranks takes {worst:.1f} ms")
        if worst > 100:
            sys.exit("page: that is too long for a page to stay usable")
    has_no_errors(browser)


def test_no_overflow(browser, program):
    """At no width does anything stick out to the side."""
    for ranks in (8, 1024):
        with SimulatedJob(program, ranks) as job:
            job.do("advance 123456")
            job.do(f"fail 3 {'x' * 300}")
            browser.open(job.url)
            shows(browser, "round", "1")
            for width in (320, 390, 768, 1100, 1440, 2560):
                browser.look(width, 900)
                awaits(f"{ranks} ranks fit into {width} pixels", lambda: browser.value(
                    "document.documentElement.scrollWidth <= window.innerWidth && cells.length > 0 && "
                    "cells.every((c) => c.x + c.w <= grid.clientWidth)"))
    browser.look(1440, 900)
    has_no_errors(browser)


def screenshots(browser, program, folder):
    """Each state that the page can be in."""
    folder.mkdir(parents=True, exist_ok=True)
    for ranks in (8, 1024):
        with SimulatedJob(program, ranks) as job:
            if ranks > 8:
                job.do("await 3")
                browser.open(job.url)
                shows(browser, "state", "waiting")
                shots(browser, folder, f"{ranks}-0-waits-for-nodes")
                job.do("await 0")
            browser.open(job.url)
            shows(browser, "world", f"{ranks:,}")
            shots(browser, folder, f"{ranks}-1-start")
            for _ in range(45):
                job.do("advance 9")
                time.sleep(0.05)
            shots(browser, folder, f"{ranks}-2-running")
            job.do("fail 3 Traceback (most recent call last):\\n  File \"train.py\", line 88, in step\\n    loss = "
                   "model(batch)\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.")
            for _ in range(3):
                job.do("advance 90")
                time.sleep(1.1)
            if ranks > 8:
                job.do("lose 97")
                job.do("advance 20")
                job.do("behind 777 40")
                job.do("behind 431 6")
            time.sleep(1.2)
            shots(browser, folder, f"{ranks}-3-restarted")
            culprit = min(5, ranks - 1) if ranks <= 8 else 777
            job.do(f"hang {culprit}")
            job.do("age 17000")
            time.sleep(1.2)
            shots(browser, folder, f"{ranks}-4-waiting")
            job.do(f"prove {culprit} rank {culprit} is stopped by a signal; the others wait for it in all_reduce 300 of group 0")
            shows(browser, "state", "hung")
            shots(browser, folder, f"{ranks}-5-hung")
            ends = {8: ("stopped", "STOPPED by ddpctl stop of ada (pid 4711)"),
                    1024: ("failed", "FAILED: rank 3 (pid 4003) ended with exit code 1")}
            job.do(f"finish train.py {ends[ranks][1]}")
            shows(browser, "state", "ended")
            shots(browser, folder, f"{ranks}-6-{ends[ranks][0]}")
        time.sleep(1.2)
    with SimulatedJob(program, 8) as job:
        browser.open(job.url)
        job.do("advance 20000")
        shows(browser, "step", "20,000")
    awaits("the page says that it hears nothing", lambda: browser.text("banner").startswith("No connection to the agent"))
    shots(browser, folder, "8-7-disconnected")
    with SimulatedJob(program, 8) as job:
        browser.open(job.url)
        job.do("advance 20000")
        job.do("finish train.py succeeded")
        shows(browser, "state", "ended")
        shots(browser, folder, "8-8-succeeded")


def shots(browser, folder, name):
    for dark in (False, True):
        for width in (500, 1600):
            browser.look(width, 844 if width < 800 else 900, dark)
            time.sleep(0.3)
            browser.screenshot(folder / f"{name}-{'dark' if dark else 'light'}-{width}.png")


def main():
    program = sys.argv[1]
    if Browser.program() is None:
        print("page: there is no Chromium here; scripts/setup installs it")
        sys.exit(77)
    with Browser() as browser:
        if "--screenshots" in sys.argv:
            screenshots(browser, program, pathlib.Path(sys.argv[sys.argv.index("--screenshots") + 1]))
            return
        for test in (test_numbers, test_waiting_for_nodes, test_a_job_that_ends_between_two_looks, test_the_loss, test_a_hang,
                     test_a_proven_hang, test_a_connection_that_breaks, test_a_thousand_ranks, test_no_overflow):
            test(browser, program)
            print(f"page: {test.__name__} passed", flush=True)


if __name__ == "__main__":
    main()
