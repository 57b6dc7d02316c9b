"""The end of each program: in the first round rank 1 fails as soon as the test says so."""
import os
import sys
import time


def end():
    sys.stdout.flush()
    folder, rank, attempt = (os.environ[name] for name in ("FOLDER", "RANK", "TORCHELASTIC_RESTART_COUNT"))
    with open("/proc/self/environ", "rb") as file:
        if b"RANK=" not in file.read():  # this process was started before it had a rank
            open(f"{folder}/waited-{attempt}-{rank}", "w").close()
    if attempt != "0":
        return
    open(f"{folder}/said-{rank}", "w").close()
    while not os.path.exists(folder + "/go"):
        time.sleep(0.01)
    if rank == "1":
        os._exit(1)
    time.sleep(1000)
