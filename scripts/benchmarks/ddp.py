"""A training step of the worker library beside PyTorch's."""

import json
import statistics
import subprocess
import sys

from benchmarks.programs import BUILD, ROOT, TORCHRUN, ddprun_command, environment
from benchmarks.table import Row


def one_ddp_run(command, steps, hidden):
    output = subprocess.run(
        [*command, f"--hidden={hidden}", f"--steps={steps}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment())
    if output.returncode != 0:
        sys.exit(f"bench: {' '.join(command)} ended with {output.returncode}:\n{output.stderr}")
    return json.loads(output.stdout)


def bench_ddp(quick):
    """One training step, forward to optimizer, of an MLP on the CPU: the same program in C++ and in Python."""
    workers = 2
    ours = ddprun_command(workers, str(BUILD / "bench/ddp_step"))
    theirs = [TORCHRUN, "--standalone", f"--nproc-per-node={workers}", str(ROOT / "tests/compat/ddp_step.py")]
    for hidden, steps in ((64, 600), (256, 300), (1024, 60)):
        parameters = 784 * hidden + hidden * hidden + 10 * hidden + 2 * hidden + 10
        row = Row(f"DDP step, {workers} ranks, {parameters / 1e6:.2g} M parameters", "ms", digits=3)
        ratios = []
        for pair in range(1 if quick else 11):
            contestants = [("ddprun", ours), ("torchrun", theirs)]
            runs = {name: one_ddp_run(command, steps, hidden)
                    for name, command in (contestants if pair % 2 == 0 else reversed(contestants))}
            if runs["ddprun"]["loss"] != runs["torchrun"]["loss"]:
                sys.exit(f"bench: the two did not do the same work: {runs}")
            for name, run in runs.items():
                row.add(name, run["median_us"] / 1e3)
            ratios.append(runs["ddprun"]["median_us"] / runs["torchrun"]["median_us"])
        ratio = statistics.median(ratios)
        row.bar("median of pairs ≤ 1.03 × PyTorch's", ratio, ratio <= 1.03)
        yield row
