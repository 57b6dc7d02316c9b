"""A cell of a campaign: an undisturbed run, then disturbed ones that must leave the same bytes."""

import dataclasses
import re
import shutil
import sys

from campaigns import growth
from campaigns.faults import draw
from campaigns.job import Run, Stuck

# Runs in a row that were over before their first fault: the program is too short for the time between faults. One may be so by
# chance.
QUIET_RUNS = 3


@dataclasses.dataclass
class Outcome:
    cell: object
    runs: int = 0
    struck: list = dataclasses.field(default_factory=list)  # kinds
    left_out: list = dataclasses.field(default_factory=list)  # kinds
    recovered: list = dataclasses.field(default_factory=list)  # events
    grown: list = dataclasses.field(default_factory=list)
    wrong: str = ""
    agent_starts: int = 0
    # Of the time until the last fault of each run: how long it was, and what an undisturbed run would have needed.
    disturbed_s: float = 0.0
    useful_s: float = 0.0

    @property
    def downtimes_ms(self):
        return [event["downtime_us"] / 1e3 for event in self.recovered]

    @property
    def goodput(self):
        return self.useful_s / self.disturbed_s if self.disturbed_s else None


def in_order(path):
    """Numbers in names as numbers."""
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", str(path))]


def result_of(folder, pattern):
    """Name and bytes of the last file by name."""
    found = (file for file in (folder / "result").glob(pattern) if file.is_file() and not file.is_symlink())
    files = sorted(found, key=in_order)
    if not files:
        sys.exit(f"chaos: no file in {folder}/result matches {pattern}: "
                 "name with --result what the program leaves in {folder}")
    return files[-1].name, files[-1].read_bytes()


def undisturbed(site, cell, base, limit_s):
    folder = base / "undisturbed"
    with Run(site, cell, folder, limit_s=limit_s) as run:
        run.run(iter(()), 0)
        if why := run.what_is_wrong():
            raise Stuck(why)
    result = result_of(folder, cell.result)
    shutil.rmtree(folder)
    return result, run.wall_s


def disturb(site, cell, seed, base, limit_s, say, known):
    """What is wrong is in the outcome, and then the last run's folder stays. `known`: what undisturbed runs left."""
    outcome = Outcome(cell)
    say(f"{cell.name}:")
    try:
        key = cell.same_as or cell.name
        if key not in known:
            known[key] = undisturbed(site, cell, base, limit_s)
        expected, wall_s = known[key]
    except Stuck as stuck:
        outcome.wrong = f"undisturbed: {stuck}"
        return outcome
    say(f"  undisturbed: {wall_s:.1f} s, {expected[0]}, {len(expected[1])} bytes")
    faults = draw(seed, cell.kinds, cell.every_s)
    run = None  # the last one
    quiet = 0  # runs in a row without a fault
    while not outcome.wrong and len(outcome.struck) < cell.faults and not (run and run.time_is_over):
        folder = base / f"run{outcome.runs}"
        for_s = None if cell.for_s is None else cell.for_s - outcome.disturbed_s
        outcome.runs += 1
        say(f"  run {outcome.runs}:")
        with Run(site, cell, folder, seed + outcome.runs, limit_s, say) as run:
            try:
                run.run(faults, cell.faults - len(outcome.struck), for_s)
            except Stuck as stuck:
                outcome.wrong = f"run {outcome.runs}: {stuck}"
            else:
                say(f"  ended after {run.wall_s:.1f} s; agents were started {run.agent_starts} times")
                outcome.agent_starts += run.agent_starts
                outcome.disturbed_s += run.wall_s - run.tail_s
                outcome.useful_s += max(0.0, wall_s - run.tail_s)
                if why := run.what_is_wrong():
                    outcome.wrong = f"run {outcome.runs}: {why}"
        outcome.struck += [fault.kind for fault, _ in run.struck]
        outcome.left_out += [fault.kind for fault in run.left_out]
        outcome.recovered += [event for event in run.events() if event["event"] == "recovered"]
        outcome.grown += [growth.growth(sizes) for sizes in run.sizes.values()]
        if not outcome.wrong and result_of(folder, cell.result) != expected:
            outcome.wrong = f"run {outcome.runs}: {cell.result} has other bytes than in the undisturbed run"
        if not outcome.wrong:
            shutil.rmtree(folder)
            quiet = 0 if run.struck else quiet + 1
            if quiet == QUIET_RUNS and cell.for_s is None:
                outcome.wrong = f"{quiet} runs were over before their first fault: give a longer program, or a smaller --every"
    return outcome
