"""Frameworks, as they are published, under ddprun: started, a rank killed or the job preempted, resumed. Nothing is downloaded:
models and data are made on the spot, and trained on the CPU.

Each training here is run twice: without a fault, and with one in which the last rank is killed after a checkpoint. It must
go on from that checkpoint and end with the same weights; with Accelerate in a loop of one's own it is replaced in place, too.
With the adapters of ddprun.accelerate, ddprun.transformers and ddprun.lightning it is preempted, leaves with 113, is started
again, and must end with the same bits.
FSDP2's job is not restarted but started again with another number of ranks. torchft's replicas are jobs of their own: the
killed one comes back with the living one's weights. Accelerate's own test scripts only have to pass, over Gloo and, where
ddprun.torch is beside DDPRUN, with shm in its place.

usage: frameworks.py DDPRUN [NAME…]     NAME: accelerate, accelerate-in-place, accelerate-preempted, accelerate-tests,
                                              accelerate-tests-shm, transformers, transformers-preempted, lightning,
                                              lightning-preempted, fsdp2, deepspeed, torchft
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
README = HERE.parents[2] / "launcher/README.md"
PACKAGE = HERE.parents[2] / "worker_lib/python"
LONGEST_S = 600
STEPS, SAVED_AT, KILLED_AT = 8, 4, 6  # as in tiny.py
PREEMPTED_STEPS = 400  # the ranks agree twice a second, and each step takes 10 ms from the signal on
# test_distributed_data_loop.py waits for ever on the CPU, under torchrun as well.
ACCELERATE_TESTS = ("test_script.py", "test_ops.py", "test_sync.py")


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def start(folder, words, **variables):
    """A job whose output goes to a file."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PET_", "DDPRUN_", "TORCHELASTIC_"))}
    environment |= {"PYTHON_EXEC": sys.executable, "FOLDER": str(folder), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1",
                    "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "1",
                    "PYTHONPATH": str(PACKAGE)}
    with open(folder / "output", "a") as output:
        return subprocess.Popen([DDPRUN, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
                                env=environment | variables)


def end(job, folder, codes=(0,)):
    try:
        code = job.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        job.terminate()
        code = f"nothing for {LONGEST_S} s, then {job.wait()}"
    if code not in codes:
        raise Failed(f"ended with {code}:\n{(folder / 'output').read_text()[-4000:]}")


def run(folder, words, codes=(0,), **variables):
    end(start(folder, words, **variables), folder, codes)


def result(folder):
    return json.loads((folder / "result.json").read_text())


def compare(plain, resumed, first=SAVED_AT, steps=STEPS, most=1e-5):
    if (plain["resumed_from"], plain["steps"]) != (0, steps):
        raise Failed(f"without a fault: from step {plain['resumed_from']} to {plain['steps']}")
    if (resumed["resumed_from"], resumed["steps"]) != (first, steps):
        raise Failed(f"resumed: from step {resumed['resumed_from']} to {resumed['steps']}, not from {first} to {steps}")
    difference = max(abs(a - b) for a, b in zip(plain["weights"], resumed["weights"], strict=True))
    if not difference <= most:
        raise Failed(f"weights differ by {difference}")


def restarted(name, folders):
    script = str(HERE / f"{name}_training.py")
    plain, killed = folders(), folders()
    run(plain, ["--nproc-per-node=2", script])
    run(killed, ["--nproc-per-node=2", "--max-restarts=1", script], KILL="1")
    compare(result(plain), result(killed))
    return f"a killed rank: the same weights from step {SAVED_AT} on"


def preempted(name, folders):
    words = ["--nproc-per-node=2", "--preempt-signal=USR1", str(HERE / f"{name.removesuffix('-preempted')}_training.py")]
    steps = {"STEPS": str(PREEMPTED_STEPS), "SAVED_AT": str(PREEMPTED_STEPS)}
    plain, folder = folders(), folders()
    run(plain, words, **steps)
    job = start(folder, words, PREEMPTED="1", **steps)
    began = [folder / f"began-{rank}" for rank in range(2)]
    deadline = time.monotonic() + LONGEST_S
    while any(not each.exists() or each.read_text() != str(KILLED_AT) for each in began):
        if job.poll() is not None or time.monotonic() > deadline:
            end(job, folder, codes=())
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    (folder / "go").touch()
    end(job, folder, codes=(113,))
    if over := [each.name for each in folder.glob("over-*")]:
        raise Failed(f"what follows the training has run: {over}")
    last = {int(each.read_text()) for each in began}
    if len(last) != 1:
        raise Failed(f"the ranks left at different steps: {last}")
    first = last.pop() + 1
    run(folder, words, **steps)
    compare(result(plain), result(folder), first, PREEMPTED_STEPS, most=0)
    return f"preempted, left with 113 after step {first} on both ranks, started again: the same bits"


def prepared_workers(folder, job):
    """By their ranks, when for each of them a standby waits that can take its place."""
    deadline = time.monotonic() + LONGEST_S
    while job.poll() is None and time.monotonic() < deadline:
        asked = subprocess.run([pathlib.Path(DDPRUN).with_name("ddpctl"), "status", "--json", "job"], capture_output=True,
                               env=os.environ | {"DDPRUN_CONTROL_DIR": str(folder / "control")})
        [node] = json.loads(asked.stdout)["nodes"] if asked.returncode == 0 else [{}]
        if (node.get("replacement") or {}).get("waiting") == 2:
            return {worker["rank"]: worker["pid"] for worker in node["workers"]}
        time.sleep(0.05)
    raise Failed(f"has no standbys:\n{(folder / 'output').read_text()[-4000:]}")


def replaced(name, folders):
    words = ["--nproc-per-node=2", "--standby=auto", "--max-restarts=1", "--rdzv-id=job",
             str(HERE / f"{name.replace('-', '_')}_training.py")]
    results = []
    for is_killed in (False, True):
        folder = folders()
        (folder / "control").mkdir(mode=0o700)
        job = start(folder, words, DDPRUN_CONTROL_DIR=str(folder / "control"))
        workers = prepared_workers(folder, job)
        (folder / "go").touch()
        if is_killed:
            time.sleep(0.2)
            os.kill(workers[1], signal.SIGKILL)
        end(job, folder)
        results.append(result(folder))
    if "its standby takes its place" not in (folder / "output").read_text():
        raise Failed(f"was not replaced in place:\n{(folder / 'output').read_text()[-4000:]}")
    if results[0] != results[1]:
        raise Failed(f"the results differ: {results}")
    return f"a killed rank, replaced in place: the same bits after {results[1]['steps']} steps"


def other_world_size(name, folders):
    script = str(HERE / f"{name}_training.py")
    plain, killed = folders(), folders()
    run(plain, ["--nproc-per-node=2", script])
    run(killed, ["--nproc-per-node=3", script], codes=(137,), KILL="1")
    run(killed, ["--nproc-per-node=2", script])
    compare(result(plain), result(killed))
    return f"3 ranks, one killed; 2 ranks go on from step {SAVED_AT} with the same weights"


def accelerate_tests(_, folders, over="", said="", **variables):
    package = pathlib.Path(importlib.util.find_spec("accelerate").origin).parent
    for name in ACCELERATE_TESTS:
        folder = folders()
        run(folder, ["--nproc-per-node=2", str(package / "test_utils/scripts" / name)], **variables)
        if said not in (folder / "output").read_text():
            raise Failed(f"{name} did not say '{said}'")
    return f"{len(ACCELERATE_TESTS)} of Accelerate's test scripts pass{over}: {', '.join(ACCELERATE_TESTS)}"


def accelerate_tests_over_shm(name, folders):
    built = pathlib.Path(DDPRUN).parent.parent / "python"  # worker_lib/CMakeLists.txt puts the package there
    if not list(built.glob("ddprun/libddprun_torch-*.so")):
        raise Skipped(f"there is no library of ddprun.torch in {built}")
    return accelerate_tests(name, folders, over=" over shm", said="ddprun: shm instead of gloo",
                            PYTHONPATH=str(built), DDPRUN_TORCH_BACKEND="shm")


def replicas(name, folders):
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=1000, quorum_tick_ms=50,
                                  heartbeat_timeout_ms=1000)
    try:
        words = ["--nproc-per-node=1", "--max-restarts=1", str(HERE / f"{name}_training.py")]
        living, killed = folders(), folders()
        jobs = [(folder, start(folder, words, TORCHFT_LIGHTHOUSE=lighthouse.address(), REPLICA=replica, **more))
                for folder, replica, more in ((living, "first", {}), (killed, "second", {"KILL": "1"}))]
        for folder, job in jobs:
            end(job, folder)
    finally:
        lighthouse.shutdown()
    compare(result(living), result(killed), first=KILLED_AT)
    return f"a killed replica is back at step {KILLED_AT} and ends with the other's weights"


CASES = {"accelerate": (restarted, "accelerate"), "accelerate-in-place": (replaced, "accelerate"),
         "accelerate-tests": (accelerate_tests, "accelerate"),
         "accelerate-tests-shm": (accelerate_tests_over_shm, "accelerate"),
         "accelerate-preempted": (preempted, "accelerate"),
         "transformers": (restarted, "transformers"), "transformers-preempted": (preempted, "transformers"),
         "lightning": (restarted, "lightning"), "lightning-preempted": (preempted, "lightning"),
         "fsdp2": (other_world_size, "torch"), "deepspeed": (restarted, "deepspeed"), "torchft": (replicas, "torchft")}


def main():
    global DDPRUN
    DDPRUN = os.path.abspath(sys.argv[1])
    table, wrong, skipped = README.read_text(), [], []
    top = pathlib.Path(tempfile.mkdtemp(prefix="ddprun_frameworks_"))
    try:
        for name in sys.argv[2:] or CASES:
            case, package = CASES[name]
            if importlib.util.find_spec(package) is None:
                skipped.append(name)
                print(f"skipped: {name}: the package {package} is not installed", flush=True)
                continue
            version = importlib.metadata.version(package)
            began = time.monotonic()
            try:
                said = case(name, lambda: pathlib.Path(tempfile.mkdtemp(dir=top)))
                if package != "torch" and f"| {version} |" not in table:
                    raise Failed(f"launcher/README.md does not say that it was tried with {package} {version}")
                print(f"ok: {name} ({package} {version}): {said}, {time.monotonic() - began:.0f} s", flush=True)
            except Skipped as reason:
                skipped.append(name)
                print(f"skipped: {name}: {reason}", flush=True)
            except Failed as problem:
                wrong.append(name)
                print(f"FAILED: {name} ({package} {version}): {problem}", flush=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{len(CASES) if not sys.argv[2:] else len(sys.argv[2:])} frameworks: {len(wrong)} wrong, {len(skipped)} skipped")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
