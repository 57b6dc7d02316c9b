"""A worker under ddprun sees what a worker under torchrun sees.

Each command line below is run by both launchers; the workers write down their environment, their
arguments and their folder, and the two are compared variable by variable. What may differ is in the
lists below, with the reason. torchrun is the one of the Python that runs this: PyTorch 2.11 in the usual run, the newest
with scripts/test --full (scripts/newest_torch).

usage: environment_parity.py DDPRUN
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

import torch

from torchrun_options import run_torchrun

WORKER = """
import json, os, sys
saw = {"environment": dict(os.environ), "arguments": sys.argv, "folder": os.getcwd()}
with open(os.path.join(os.environ["OUT_DIR"], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(saw, file)
"""

# Both have these, with values of their own.
MAY_DIFFER = {
    "OUT_DIR": "this test's",
    "TORCHELASTIC_ERROR_FILE": "below a temporary folder, or in one, with a random name",
}
MAY_DIFFER_UNLESS_FIXED = {
    "MASTER_PORT": "ddprun takes a free port where the user fixed none",
    "MASTER_ADDR": "torchrun's c10d looks its own name up in reverse; ddprun gives an address",
    "TORCHELASTIC_RUN_ID": "random for --standalone",
}
# Only one of them has these.
ONLY_TORCHRUN = {"PET_MASTER_PORT": "this test's: see torchrun_variables()"}
ONLY_DDPRUN_BEGINS = "DDPRUN_"

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# From this version on torchrun, too, takes a free port on one node; and with it c10d, and a random run id.
FREE_PORT = (2, 12)

C10D = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
# Options, variables, and which of MAY_DIFFER_UNLESS_FIXED the user fixed.
CASES = [
    (["worker.py", "a", "--b"], {}, ["MASTER_ADDR", "TORCHELASTIC_RUN_ID"]),
    (["--nproc-per-node=2", "worker.py", "x${local_rank}", "$local_rank", "$$", "$other"], {}, ["MASTER_ADDR"]),
    (["--nproc-per-node=2", "--role=trainer", "worker.py"], {"OMP_NUM_THREADS": "3"}, ["MASTER_ADDR"]),
    (["--standalone", "--nproc_per_node=2", "--max-restarts=3", "worker.py"], {}, []),
    (["--master-addr=localhost", "--master-port={port}", "worker.py"], {}, ["MASTER_ADDR", "MASTER_PORT"]),
    (["--rdzv-endpoint=localhost:{port}", "worker.py"], {}, ["MASTER_ADDR", "MASTER_PORT"]),
    ([*C10D, "--rdzv-id=job7", "worker.py"], {}, ["TORCHELASTIC_RUN_ID"]),
    ([*C10D, "--local-addr=127.0.0.1", "worker.py"], {}, ["MASTER_ADDR"]),
    (["-m", "package.worker", "a"], {}, ["MASTER_ADDR"]),
    (["--no-python", "{python}", "worker.py", "${local_rank}"], {}, ["MASTER_ADDR"]),
    (["--run-path", "worker.py", "a"], {}, ["MASTER_ADDR"]),
    (["--virtual-local-rank", "--nproc-per-node=2", "worker.py"], {}, ["MASTER_ADDR"]),
    (["--virtual-local-rank", "--nproc-per-node=2", "worker.py"], {"CUDA_VISIBLE_DEVICES": "4, 5"}, ["MASTER_ADDR"]),
    (["--signals-to-handle=SIGTERM,SIGUSR1", "worker.py"], {}, ["MASTER_ADDR"]),
    (["--log-dir=/dev/null", "worker.py"], {}, ["MASTER_ADDR"]),
    (["worker.py"], {"PET_NPROC_PER_NODE": "2", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, ["MASTER_ADDR"]),
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def has_port(words):
    return any(word.startswith(("--master-port", "--rdzv-endpoint", "--standalone")) for word in words)


def torchrun_variables(words):
    """Older ones' default port is the same for every job of the machine: it is moved out of the way."""
    return {} if has_port(words) or VERSION >= FREE_PORT else {"PET_MASTER_PORT": str(free_port())}


def under(ddprun):
    def start(folder, words, environment, out, err):
        return subprocess.run([ddprun, *words], cwd=folder, env=environment, stdout=out, stderr=err,
                              timeout=120).returncode
    return start


def run(launcher, words, variables, folder):
    """What each worker saw, by rank, or the launcher's complaint."""
    out = tempfile.mkdtemp(dir=folder)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDPRUN_", "TORCHELASTIC_"))
    }
    environment.pop("OMP_NUM_THREADS", None)
    environment |= {"VIRTUAL_ENV": sys.prefix, "PYTHONPATH": folder, "OUT_DIR": out, **variables}
    with tempfile.TemporaryFile() as said:
        code = launcher(folder, words, environment, said, said)
        said.seek(0)
        if code != 0:
            return {}, f"{launcher.__name__} ended with {code}: {said.read().decode()}"
    workers = {}
    for name in sorted(os.listdir(out)):
        with open(os.path.join(out, name)) as file:
            workers[name] = json.load(file)
    return workers, None


def differences(theirs, ours, fixed):
    for name in sorted(theirs["environment"].keys() | ours["environment"].keys()):
        their_value, our_value = theirs["environment"].get(name), ours["environment"].get(name)
        if their_value == our_value:
            continue
        if their_value is None and name.startswith(ONLY_DDPRUN_BEGINS):
            continue
        if our_value is None and name in ONLY_TORCHRUN:
            continue
        may_differ = name in MAY_DIFFER or (name in MAY_DIFFER_UNLESS_FIXED and name not in fixed)
        if may_differ and their_value and our_value:
            continue
        yield f"{name}: torchrun {their_value!r}, ddprun {our_value!r}"
    for what in ("arguments", "folder"):
        if theirs[what] != ours[what]:
            yield f"{what}: torchrun {theirs[what]}, ddprun {ours[what]}"


def main():
    ddprun = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="ddprun_environment_")
    problems = 0
    print(f"beside torchrun of PyTorch {torch.__version__}", flush=True)
    try:
        os.mkdir(os.path.join(folder, "package"))
        for name in ("worker.py", "package/worker.py", "package/__init__.py"):
            with open(os.path.join(folder, name), "w") as file:
                file.write(WORKER if name.endswith("worker.py") else "")
        for words, variables, fixed in CASES:
            if VERSION >= FREE_PORT and not has_port(words):
                fixed = []
            port = str(free_port())
            words = [word.replace("{port}", port).replace("{python}", sys.executable) for word in words]
            theirs, complaint = run(run_torchrun, words, {**variables, **torchrun_variables(words)}, folder)
            ours, our_complaint = run(under(ddprun), words, variables, folder)
            found = [text for text in (complaint, our_complaint) if text]
            if not theirs or theirs.keys() != ours.keys():
                found.append(f"ranks: torchrun {list(theirs)}, ddprun {list(ours)}")
            for rank in theirs.keys() & ours.keys():
                found += [f"{rank}: {text}" for text in differences(theirs[rank], ours[rank], fixed)]
            problems += len(found)
            print("ok  " if not found else "DIFF", words, variables or "", flush=True)
            for text in found:
                print("    ", text)
    finally:
        shutil.rmtree(folder)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
