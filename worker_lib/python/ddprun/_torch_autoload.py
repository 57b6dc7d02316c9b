"""DDPRUN_TORCH_BACKEND=shm: torch calls this at the end of its import (an entry point "torch.backends"), so that
programs which say `init_process_group("gloo")` take shm for the CPU as they are, under any launcher.

All other programs pay for this file, so it imports nothing that they need not have.
"""

import os
import sys

_VARIABLE = "DDPRUN_TORCH_BACKEND"


def install():
    wanted = os.environ.get(_VARIABLE, "")
    if wanted in ("", "gloo"):
        return
    try:
        if wanted != "shm":
            raise ValueError(f"the only value is shm, not '{wanted}'")
        import ddprun.torch
        ddprun.torch.replace_gloo()
    except Exception as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"ddprun: {_VARIABLE} has no effect: {error}", file=sys.stderr, flush=True)
