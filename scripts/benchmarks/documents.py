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
    tables = with_results(tables_in(texts[ALL].split(BEGIN)[1].split(END)[0].strip().splitlines()), results)
    rows = {name: (cells, about) for about, its in tables.items() for name, cells in its.items()}
    if missing := TOP_ROWS.keys() - rows.keys():
        leave(f"the table has no row for {', '.join(sorted(missing))}, which the top README.md shows")
    for path, lines in ((ALL, all_lines(tables)), (TOP, top_lines(rows))):
        before, rest = texts[path].split(BEGIN)
        path.write_text(before + "\n".join([BEGIN, *lines, END]) + rest.split(END)[1])


def tables_in(lines):
    """{where and when: {name: cells of its row}}; that line follows its table."""
    tables, rows = {}, {}
    for line in lines:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells != HEADINGS and set("".join(cells)) != set("-:"):
                rows[cells[0]] = cells
        elif line:
            tables[line], rows = rows, {}
    return tables


def with_results(tables, results):
    """A row that was measured again leaves the table where it was."""
    if quick := [name for name in results if results[name]["quick"]]:
        leave(f"only measured with --quick: {', '.join(quick)}")
    is_all = set(BENCHES) <= results.keys()  # then a row that nobody measures any more goes
    tables = {} if is_all else {about: dict(rows) for about, rows in tables.items()}
    for name in (name for name in BENCHES if name in results):
        result = results[name]
        about = f"Medians on {result['machine']}, PyTorch {result['torch']}, {result['date']}."
        for row in result["rows"]:
            cells = row["cells"]
            for rows in tables.values():
                rows.pop(cells[0], None)
            tables.setdefault(about, {})[cells[0]] = cells
    return {about: rows for about, rows in tables.items() if rows}


def all_lines(tables):
    for number, (about, rows) in enumerate(tables.items()):
        yield from ([""] if number > 0 else []) + [*markdown([HEADINGS, *rows.values()]), "", about]


def top_lines(rows):
    yield "| what | ddprun | torchrun, PyTorch |"
    yield "|---|---:|---:|"
    for name, words in TOP_ROWS.items():
        cells = dict(zip(HEADINGS, rows[name][0]))
        figures = (f"{cells[column]} {cells['unit']}" if cells[column] else "" for column in ("ddprun", "PyTorch"))
        yield f"| {words} | " + " | ".join(figures) + " |"
    yield ""
    yield " ".join(sorted({rows[name][1] for name in TOP_ROWS}))


def leave(why):
    sys.exit(f"bench: the READMEs are left as they are: {why}")
