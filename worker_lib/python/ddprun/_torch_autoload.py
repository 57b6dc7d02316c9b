"""torch calls this at the end of its import (an entry point "torch.backends").

DDPRUN_TORCH_BACKEND=shm: programs which say `init_process_group("gloo")` take shm for the CPU as they are, under any launcher.
DDPRUN_AS_TORCHRUN=1, or the path of the program: ddprun is in torchrun's place (as_torchrun.py).

All other programs pay for this file, so it imports nothing that they need not have.
"""

import os
import sys

_VARIABLE = "DDPRUN_TORCH_BACKEND"


def install():
    install_backend()
    put_in_torchruns_place()


def put_in_torchruns_place():
    value = os.environ.get("DDPRUN_AS_TORCHRUN", "")
    if value in ("", "0", "false"):
        return
    try:
        if value not in ("1", "true") and "/" not in value:
            raise ValueError(f"DDPRUN_AS_TORCHRUN={value}: give 1 (on), 0 (off), or the path of the program ddprun")
        from ddprun import as_torchrun
        as_torchrun.install()
    except Exception as error:
        print(f"ddprun: torchrun is not ddprun in this process: {error}", file=sys.stderr, flush=True)


def install_backend():
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
