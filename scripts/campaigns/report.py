"""What a campaign found, as text (Markdown), and its downtimes as a drawing."""

import collections
import html
import math
import statistics

from campaigns import growth
from campaigns.faults import KINDS

EDGES_MS = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000]


def bucket_of(ms):
    return next((index for index, edge in enumerate(EDGES_MS) if ms < edge), len(EDGES_MS))


def name_of_bucket(index):
    def text(ms):
        return f"{ms} ms" if ms < 1000 else f"{ms // 1000} s"

    return f"< {text(EDGES_MS[index])}" if index < len(EDGES_MS) else f"≥ {text(EDGES_MS[-1])}"


def histogram(downtimes_ms):
    """(name, how many), without the empty ends."""
    counts = collections.Counter(map(bucket_of, downtimes_ms))
    if not counts:
        return []
    return [(name_of_bucket(index), counts[index]) for index in range(min(counts), max(counts) + 1)]


def duration(ms):
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1e3:.1f} s"


def summary(downtimes_ms):
    ordered = sorted(downtimes_ms)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return (f"{len(ordered)} downtimes: median {duration(statistics.median(ordered))}, 99 % ≤ {duration(p99)}, "
            f"longest {duration(ordered[-1])}, {duration(sum(ordered))} in all")


def table(headings, rows):
    return ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings), *("| " + " | ".join(row) + " |" for row in rows)]


def bars(downtimes_ms):
    found = histogram(downtimes_ms)
    most = max((count for _, count in found), default=1)
    return ["```", *(f"{name:>9}  {'█' * math.ceil(40 * count / most):<40} {count}" for name, count in found), "```"]


def row_of(outcome):
    hows = collections.Counter(event.get("how") or "restarted" for event in outcome.recovered)
    downtimes = outcome.downtimes_ms
    goodput = f"{outcome.goodput * 100:.0f} %" if outcome.cell.for_s and outcome.goodput is not None else ""
    return [outcome.cell.name, str(len(outcome.struck)), str(outcome.runs), str(outcome.agent_starts),
            ", ".join(f"{count} × {how}" for how, count in sorted(hows.items())),
            duration(statistics.median(downtimes)) if downtimes else "", duration(max(downtimes)) if downtimes else "",
            goodput]


def lines_of(title, outcomes, without):
    """`without`: why a kind could not be had, by kind."""
    downtimes = [ms for outcome in outcomes for ms in outcome.downtimes_ms]
    struck = collections.Counter(kind for outcome in outcomes for kind in outcome.struck)
    left_out = collections.Counter(kind for outcome in outcomes for kind in outcome.left_out)
    wrong = [f"WRONG: {outcome.cell.name}: {outcome.wrong}" for outcome in outcomes if outcome.wrong]
    yield f"{title}: {struck.total()} faults"
    yield ""
    yield from table(["what", "faults", "runs", "starts of agents", "recoveries", "downtime, median", "longest", "goodput"],
                     map(row_of, outcomes))
    yield ""
    yield ", ".join(f"{struck[kind]} × {kind}" for kind in KINDS if struck[kind]) + "."
    for why in dict.fromkeys(without.values()):
        yield f"Without {', '.join(kind for kind in without if without[kind] == why)}: {why}."
    if left_out:
        yield "Left out, as there was nobody of that kind: " + ", ".join(f"{n} × {kind}" for kind, n in left_out.items()) + "."
    yield ""
    if wrong:
        yield from wrong
    else:
        yield from verdict(outcomes)
    if downtimes:
        yield ""
        yield summary(downtimes) + ":"
        yield ""
        yield from bars(downtimes)


def verdict(outcomes):
    with_samples = all(outcome.cell.samples for outcome in outcomes)
    most = growth.largest(each for outcome in outcomes for each in outcome.grown)
    yield ("Every run left the same bytes as the undisturbed one" +
           (", used every sample exactly once in each epoch" if with_samples else "") + ", and left no process behind. "
           f"The largest growth of an agent or keeper: {most['KiB']:.0f} KiB, {most['files']:.0f} files, "
           f"{most['threads']:.0f} threads.")


def as_svg(title, downtimes_ms):
    found = histogram(downtimes_ms) or [("none", 0)]
    most = max(count for _, count in found) or 1
    width, height, step = 60 * len(found) + 40, 240, 60
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f"<title>{html.escape(title)}</title>",
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="20" y="16" font-size="13">{html.escape(title)}</text>']
    for index, (name, count) in enumerate(found):
        tall = 160 * count / most
        x, y = 20 + index * step, 205 - tall
        parts.append(f'<rect x="{x + 8}" y="{y:.1f}" width="{step - 16}" height="{tall:.1f}" fill="#3b6ea5"/>')
        parts.append(f'<text x="{x + step / 2}" y="{y - 4:.1f}" text-anchor="middle">{count}</text>')
        parts.append(f'<text x="{x + step / 2}" y="222" text-anchor="middle">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def sentence(mode, outcomes):
    """For the top README."""
    downtimes = [ms for outcome in outcomes for ms in outcome.downtimes_ms]
    faults = sum(len(outcome.struck) for outcome in outcomes)
    if mode == "storm":
        return (f"A storm of {faults} faults, one per second: the job finished, with {outcomes[0].goodput * 100:.0f} % of the "
                f"undisturbed speed and the same bytes.")
    return f"{faults:,} faults: every result had the same bytes; {summary(downtimes)}."
