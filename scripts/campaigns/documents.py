"""Writes a campaign's report into scripts/campaigns/README.md, and a sentence of it into the top README.md, between markers."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = ROOT / "scripts/campaigns/README.md"
TOP = ROOT / "README.md"


def put(path, name, lines):
    begin = f"<!-- chaos {name}:begin (written by scripts/chaos --{name} --update-readme) -->"
    end = f"<!-- chaos {name}:end -->"
    text = path.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"chaos: {path.relative_to(ROOT)} must hold each of these lines once:\n{begin}\n{end}")
    path.write_text(re.sub(f"({re.escape(begin)}\n).*?({re.escape(end)})",
                           lambda found: found[1] + "".join(line + "\n" for line in lines) + found[2], text, flags=re.DOTALL))


def update(name, lines, sentence, svg):
    (ALL.parent / f"{name}.svg").write_text(svg)
    put(ALL, name, [*lines, "", f"![The same as a drawing]({name}.svg)"])
    put(TOP, name, [sentence])
