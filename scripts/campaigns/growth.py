"""Whether a process that lives through many faults grows: its memory, its files, its threads."""

import collections
import dataclasses
import os
import statistics

from campaigns.processes import children, text_of

# Of one process, with the same number of children: half a minute of its life. In a shorter one, workers that are just being
# replaced by others, with the files of both, weigh too much.
SAMPLES_MIN = 120
# More than these is growth. Buffers may double once, and a worker and its standby, which count as children from the start, have up
# to ten files in the agent only when they have made their imports; what is lost with each fault adds up.
LIMITS = {"KiB": 4096, "files": 16, "threads": 4}


@dataclasses.dataclass(frozen=True)
class Size:
    kib: int
    files: int
    threads: int
    children: int = 0

    @staticmethod
    def of(pid):
        """None if it is over."""
        status = dict(line.split(":", 1) for line in text_of(f"/proc/{pid}/status").splitlines() if ":" in line)
        try:
            return Size(int(status["RssAnon"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]),
                        len(children(pid)))
        except (KeyError, OSError):
            return None


def growth(sizes):
    """By its unit, from the second to the last quarter of a process's life; its sizes are in the order of time. Compared are
    those with the most frequent number of children: an agent has links to its workers and standbys. Empty if these are too
    few to tell."""
    counts = collections.Counter(size.children for size in sizes)
    sizes = [size for size in sizes if size.children == counts.most_common(1)[0][0]]
    if len(sizes) < SAMPLES_MIN:
        return {}
    quarter = len(sizes) // 4
    early, late = sizes[quarter:2 * quarter], sizes[-quarter:]

    def grown(attribute):
        of = [[getattr(size, attribute) for size in part] for part in (early, late)]
        return statistics.median(of[1]) - statistics.median(of[0])

    return {"KiB": grown("kib"), "files": grown("files"), "threads": grown("threads")}


def largest(all_growth):
    return {unit: max((each[unit] for each in all_growth if each), default=0) for unit in LIMITS}


def what_is_wrong(who, sizes):
    for unit, more in growth(sizes).items():
        if more > LIMITS[unit]:
            return f"{who} has grown by {more:.0f} {unit}"
    return None
