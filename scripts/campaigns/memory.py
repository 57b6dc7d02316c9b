"""A control group for the processes of one node, whose memory is made short, so that the kernel kills one of them: as in a
container with a limit. Version 2 where it has the memory controller, else version 1. The victim is chosen by
oom_score_adj; a small process beside it asks for memory at that moment."""

import errno
import os
import pathlib
import subprocess
import time

from campaigns.processes import is_alive

_ASKS_MB = 48
_SPARE = 8 << 20
_LIMIT_S = 3.0


class Unavailable(Exception):
    pass


def _hierarchies():
    """(version, the folders where a group may be made), better ones first."""
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    own = dict(line.split(":", 2)[1:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines())
    for _, folder, kind, options, *_ in mounts:
        if kind == "cgroup2":
            yield 2, [pathlib.Path(folder + own.get("", "/")), pathlib.Path(folder)]
        elif kind == "cgroup" and "memory" in options.split(","):
            of_memory = next((path for names, path in own.items() if "memory" in names.split(",")), "/")
            yield 1, [pathlib.Path(folder + of_memory), pathlib.Path(folder)]


class MemoryGroup:
    def __init__(self, name):
        """Raises Unavailable."""
        why = "no control groups are mounted"
        for version, parents in sorted(_hierarchies(), key=lambda each: -each[0]):
            for parent in parents:
                self._group = parent / name
                self._limit = self._group / ("memory.max" if version == 2 else "memory.limit_in_bytes")
                self._none = "max" if version == 2 else "-1"
                try:
                    self._group.mkdir()
                    self._limit.write_text(self._none)
                    return
                except OSError as error:
                    why = f"no control group with a limit of memory can be made: {error.strerror}"
                    if self._group.is_dir():
                        self._group.rmdir()
        raise Unavailable(why)

    def enter(self):
        """For the process that calls it, and its children."""
        (self._group / "cgroup.procs").write_text("0")

    def kill(self, pid):
        """True if the kernel has killed it."""
        asks = None
        try:
            pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
            if not self._make_short():
                return False
            asks = subprocess.Popen(["dd", "if=/dev/zero", "of=/dev/null", f"bs={_ASKS_MB}M", "count=1"],
                                    stderr=subprocess.DEVNULL, preexec_fn=self.enter)
            deadline = time.monotonic() + _LIMIT_S
            while (lives := is_alive(pid)) and time.monotonic() < deadline:
                time.sleep(0.002)
            return not lives
        except OSError:  # it has just ended
            return False
        finally:
            self._limit.write_text(self._none)
            if asks:
                asks.kill()
                asks.wait()

    def close(self):
        """Its processes have ended; those of them that nobody has waited for yet are in it a moment longer."""
        deadline = time.monotonic() + _LIMIT_S
        while True:
            try:
                return self._group.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _needed(self):
        """Bytes that the kernel cannot take back."""
        stat = dict(line.split() for line in (self._group / "memory.stat").read_text().splitlines())
        if "kernel" in stat:
            return int(stat["anon"]) + int(stat["shmem"]) + int(stat["kernel"])
        kernel = self._group / "memory.kmem.usage_in_bytes"
        return int(stat["total_rss"]) + int(stat.get("total_shmem", 0)) + int(kernel.read_text())

    def _make_short(self):
        for tries in range(32):
            try:
                self._limit.write_text(str(self._needed() + (1 + tries) * _SPARE // 2))
                return True
            except OSError:  # version 1: it uses more than that
                pass
        return False


def obstacle():
    """Tries it."""
    try:
        MemoryGroup(f"ddprun-chaos-probe-{os.getpid()}").close()
    except Unavailable as why:
        return str(why)
    return None
