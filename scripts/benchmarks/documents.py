"""Writes the table of all figures into scripts/benchmarks/README.md, and ten of its rows into the top README.md."""

import sys

from benchmarks import BENCHES
from benchmarks.programs import ROOT
from benchmarks.table import HEADINGS, markdown

ALL = ROOT / "scripts/benchmarks/README.md"
TOP = ROOT / "README.md"
BEGIN = "<!-- bench:begin (written by scripts/bench --update-readme) -->"
END = "<!-- bench:end -->"

# What a user of torchrun asks first: a row's name in the table, and what the top README calls it.
TOP_ROWS = {
    "launch 2 × /bin/true": "start and end of a job of 2 processes (`/bin/true`)",
    "peak memory with 64 workers": "memory of the launcher with 64 workers",
    "SIGKILL of 1 of 2 workers to the new group": "a worker is killed: until the new group runs",
    "two agents: SIGKILL of a worker to all ranks of the new round":
        "the same with two agents: until all ranks of the new round run",
    "three agents: SIGKILL of one to the new round of the others":
        "one of three agents is killed: until the new round of the others runs",
    "rendezvous of 10,000 agents": "rendezvous of 10,000 agents",
    "start to first step, 2 ranks": "from the start to the first training step, 2 ranks (C++ and Python)",
    "DDP step, 2 ranks, cnn, 0.11 M parameters": "DDP step of a small CNN, 2 ranks over Gloo",
    "store ops 64": "store: operations of 64 clients",
    "progress update over the worker link": "one report of progress from a worker to its agent",
}


def update_readme(results):
    texts = {path: path.read_text() for path in (ALL, TOP)}
    for path, text in texts.items():
        if text.count(BEGIN) != 1 or text.count(END) != 1:
            sys.exit(f"bench: {path.relative_to(ROOT)} must hold each of these lines once:\n{BEGIN}\n{END}")
    present = texts[ALL].split(BEGIN)[1].split(END)[0].strip().splitlines()
    rows, about = rows_and_about(results, present)
    if missing := TOP_ROWS.keys() - rows.keys():
        leave(f"the table has no row for {', '.join(sorted(missing))}, which the top README.md shows")
    for path, lines in ((ALL, [*markdown([HEADINGS, *rows.values()]), "", about]), (TOP, top_lines(rows, about))):
        before, rest = texts[path].split(BEGIN)
        path.write_text(before + "\n".join([BEGIN, *lines, END]) + rest.split(END)[1])


def rows_and_about(results, present):
    """The rows by their names, and where and when they were measured; `present` are the lines of the table as it is."""
    quick = [name for name in results if results[name]["quick"]]
    if quick:
        leave(f"only measured with --quick: {', '.join(quick)}")
    dates = sorted({result["date"] for result in results.values()})
    where = sorted({f"{result['machine']}, PyTorch {result['torch']}" for result in results.values()})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    about = f"Medians on {'; '.join(where)}, {when}."
    rows = {row["cells"][0]: row["cells"] for name in BENCHES if name in results for row in results[name]["rows"]}
    missing = [name for name in BENCHES if name not in results]
    if missing:
        if present[-1:] != [about]:
            leave(f"nothing is measured yet for {', '.join(missing)}, and what it has is not of this machine and day")
        there = [[cell.strip() for cell in line.strip("|").split("|")] for line in present if line.startswith("|")][2:]
        unknown = rows.keys() - {cells[0] for cells in there}
        if unknown:
            leave(f"it has no row for {', '.join(sorted(unknown))}; measure everything")
        rows = {cells[0]: rows.get(cells[0], cells) for cells in there}
    return rows, about


def top_lines(rows, about):
    yield "| what | ddprun | torchrun, PyTorch |"
    yield "|---|---:|---:|"
    for name, words in TOP_ROWS.items():
        cells = dict(zip(HEADINGS, rows[name]))
        figures = (f"{cells[column]} {cells['unit']}" if cells[column] else "" for column in ("ddprun", "PyTorch"))
        yield f"| {words} | " + " | ".join(figures) + " |"
    yield ""
    yield about


def leave(why):
    sys.exit(f"bench: the READMEs are left as they are: {why}")
