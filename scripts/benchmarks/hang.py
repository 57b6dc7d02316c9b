"""What it costs to know in which call a rank is."""

import json
import subprocess

from benchmarks.programs import BUILD, ddprun_command, environment
from benchmarks.table import Row


def bench_hang(quick):
    row = Row("a collective in the worker's record, beyond two readings of the clock", "ns", digits=1)
    for _ in range(1 if quick else 5):
        command = ddprun_command(1, str(BUILD / "bench/record_call"))
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment()).stdout
        figures = json.loads(output)
        row.add("ddprun", figures["call_ns"] - figures["clock_ns"])
    row.bar("≤ 60 ns", row.median("ddprun"), row.median("ddprun") <= 60)
    yield row
