"""What a campaign found, as text, and its downtimes as a drawing."""

import collections
import html
import math
import statistics

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


def as_text(title, lines, downtimes_ms):
    out = [title, *lines, ""]
    if downtimes_ms:
        ordered = sorted(downtimes_ms)
        p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
        out.append(f"downtime: {len(ordered)} times, median {statistics.median(ordered):.0f} ms, 99 % ≤ {p99:.0f} ms, "
                   f"longest {ordered[-1]:.0f} ms, {sum(ordered) / 1e3:.1f} s in all")
    bars = histogram(downtimes_ms)
    most = max((count for _, count in bars), default=1)
    out += [f"{name:>9}  {'█' * math.ceil(40 * count / most):<40} {count}" for name, count in bars]
    return "\n".join(out) + "\n"


def as_svg(title, downtimes_ms):
    bars = histogram(downtimes_ms) or [("none", 0)]
    most = max(count for _, count in bars) or 1
    width, height, step = 60 * len(bars) + 40, 240, 60
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f"<title>{html.escape(title)}</title>",
             f'<text x="20" y="16" font-size="13">{html.escape(title)}</text>']
    for index, (name, count) in enumerate(bars):
        tall = 160 * count / most
        x, y = 20 + index * step, 205 - tall
        parts.append(f'<rect x="{x + 8}" y="{y:.1f}" width="{step - 16}" height="{tall:.1f}" fill="#3b6ea5"/>')
        parts.append(f'<text x="{x + step / 2}" y="{y - 4:.1f}" text-anchor="middle">{count}</text>')
        parts.append(f'<text x="{x + step / 2}" y="222" text-anchor="middle">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
