"""The wall clock of one node's processes, which can step: the machine's own is never set. Only a preloaded library can shift
the clock of some processes (tests/support/wrong_clock.cpp), so programs that are linked statically keep the true one, and so
do the times of files."""

import pathlib
import struct

VARIABLE = "DDPRUN_WRONG_CLOCK_FILE"


def obstacle(library):
    return None if pathlib.Path(library).exists() else f"{library} is not built"


class Clock:
    def __init__(self, library, file):
        self._library, self._file = library, file
        self.offset_s = 0.0
        self._write()

    def environment(self, environment):
        return {"LD_PRELOAD": " ".join(filter(None, [str(self._library), environment.get("LD_PRELOAD")])),
                VARIABLE: str(self._file)}

    def step(self, seconds):
        self.offset_s += seconds
        self._write()

    def _write(self):
        with open(self._file, "r+b" if self._file.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=q", int(self.offset_s * 1e9)))
