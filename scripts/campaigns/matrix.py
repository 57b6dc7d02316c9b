"""What is disturbed: cells, each of them a program, so many ranks on so many nodes, and how these meet."""

import dataclasses
import os
import pathlib
import sys

from campaigns.faults import KINDS, OF_A_PROCESS

ROOT = pathlib.Path(__file__).resolve().parents[2]
OF_TRAIN = ["{train}", "--batch-size=16", "--checkpoint-dir={folder}", "--checkpoint-every=20", "--memory-every=5"]
TRAIN_SAMPLES = 9600  # of an epoch: divisible by 16 and by 2 and 3 ranks
PYTHON_SAMPLES = 480
INTEGER_STEPS = 800
OF_A_PROGRAM = tuple(kind for kind in KINDS if kind != "zygote-kill")  # only standbys of Python have one


@dataclasses.dataclass(frozen=True)
class Cell:
    name: str
    command: tuple  # ddprun's options, the program and its arguments; with {folder} and {samples}, as the environment
    nodes: int = 1
    nnodes: str = ""  # if it is not the number of nodes
    rdzv: str = "c10d"
    result: str = "**/*.safetensors"
    samples: tuple = ()  # epochs and samples of each, if the program tells its samples
    environment: tuple = ()
    kinds: tuple = tuple(KINDS)
    faults: int = 20
    every_s: float = 2.0
    for_s: float | None = None  # no fault is made later, in all runs together
    same_as: str = ""  # cells with the same words here leave the same bytes: one of them runs undisturbed


def train(bin_folder, ranks, nodes=1, epochs=4, kinds=OF_A_PROGRAM, **more):
    words = [f"--nproc-per-node={ranks // nodes}", "--standby=auto", "--no-python",
             *(word.replace("{train}", str(bin_folder / "ddprun_recorded_train")) for word in OF_TRAIN),
             f"--epochs={epochs}", f"--limit={TRAIN_SAMPLES}"]
    return Cell(f"train (C++), {ranks} ranks, {_nodes(nodes)}", tuple(words), nodes=nodes,
                samples=(epochs, TRAIN_SAMPLES), environment=(("DDPRUN_RECORD_SAMPLES", "{samples}"),), kinds=kinds, **more)


def python(python_exec, ranks, nodes=1, epochs=100, **more):
    words = [f"--nproc-per-node={ranks // nodes}", "--standby=auto", str(ROOT / "scripts/campaigns/training.py"), "{folder}",
             "{samples}", str(epochs), str(PYTHON_SAMPLES)]
    environment = (("PYTHON_EXEC", python_exec), ("PYTHONPATH", str(ROOT / "worker_lib/python")))
    return Cell(f"Python script, {ranks} ranks, {_nodes(nodes)}", tuple(words), nodes=nodes, result="final.bin",
                samples=(epochs, PYTHON_SAMPLES), environment=environment, **more)


def integers(bin_folder, rdzv, nodes, nnodes="", ranks_of_node=1, **more):
    """The sum of integers does not depend on the number of ranks, so here it may change."""
    words = (f"--nproc-per-node={ranks_of_node}", "--shutdown-timeout=1", "--no-python",
             str(bin_folder / "ddprun_integer_training"), "{folder}", str(INTEGER_STEPS))
    how = rdzv if nodes > 1 else "one node"
    # With a sanitizer, too, agents die of SIGSEGV.
    environment = tuple((name, os.environ.get(name, "") + ":handle_segv=0") for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"))
    return Cell(f"integers, {how}, --nnodes={nnodes or nodes}, {nodes * ranks_of_node} workers", words, nodes=nodes,
                nnodes=nnodes, rdzv=rdzv, result="step-*", same_as="integers", environment=environment,
                kinds=tuple(OF_A_PROCESS), **more)


def _nodes(nodes):
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def quick(bin_folder):
    kinds = ("worker-kill", "worker-segv", "workers-kill", "standby-kill", "keeper-kill", "worker-stop", "clock-step",
             "disk-full", "disk-slow", "worker-oom")
    return [train(bin_folder, 2, epochs=2, kinds=kinds, faults=10, every_s=0.6)]


def meetings(bin_folder, full):
    """Every signal to every process, however nodes meet; more and fewer of them, and spares."""
    more = {"faults": 100 if full else 5, "every_s": 0.7}
    return [integers(bin_folder, "c10d", 1, ranks_of_node=3, **more), integers(bin_folder, "c10d", 3, "2:3", **more),
            integers(bin_folder, "static", 2, ranks_of_node=2, **more), integers(bin_folder, "leader", 3, "2", **more),
            integers(bin_folder, "etcd", 2, "1:2", **more)]


def full(bin_folder, python_exec, faults):
    sizes = [(2, 1), (3, 1), (2, 2), (3, 3)]
    cells = [make(where, ranks, nodes) for ranks, nodes in sizes
             for make, where in ((train, bin_folder), (python, python_exec))]
    share, rest = divmod(faults, len(cells))
    return [dataclasses.replace(cell, faults=share + (number < rest)) for number, cell in enumerate(cells)]


def storm(bin_folder, seconds):
    kinds = tuple(kind for kind, (target, action, _) in KINDS.items()
                  if target in ("worker", "workers", "standby", "keeper", "agent"))
    cell = train(bin_folder, 2, epochs=max(2, int(seconds / 5)), kinds=kinds, faults=sys.maxsize, every_s=1.0)
    return [dataclasses.replace(cell, name=f"{cell.name}, a fault per second for {seconds:.0f} s", for_s=seconds)]
