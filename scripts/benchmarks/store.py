"""The store server beside PyTorch's."""

import json
import subprocess
import tempfile

from benchmarks.programs import BUILD, PYTHON, ROOT
from benchmarks.table import Row

# What each row of store_bench is held against. Operations and connections: not slower than PyTorch's, but for 3 % of
# noise; their CPU time: that of the floor, which makes the same system calls and nothing else, and a tenth more.
NOT_SLOWER = ("pair", "release_1000", "connect_1000")
AS_MANY = ("ops_64", "ops_256", "ops_100_conns", "ops_1000_conns", "ops_10000_conns", "handshake_32")
AT_MOST = {"check_131072": (60, "ms"), "multi_set_20000": (40, "ms"), "multi_set_8x1MiB": (5, "ms"),
           "idle_connection": (4096, "B")}


def hold_against_store_bar(row, what):
    if what in NOT_SLOWER:
        ratio = row.ratio("ddprun", "PyTorch")
        row.bar("≤ 1.03 × PyTorch's", ratio, ratio <= 1.03)
    elif what in AS_MANY:
        ratio = row.ratio("ddprun", "PyTorch")
        row.bar("≥ 0.97 × PyTorch's", ratio, ratio >= 0.97)
    elif what == "large_8MiB":
        ratio = row.ratio("ddprun", "PyTorch")
        row.bar("≥ 1.2 × PyTorch's", ratio, ratio >= 1.2)
    elif what.endswith("_cpu") and "floor" in row.samples:
        ratio = row.ratio("ddprun", "floor")
        row.bar("≤ 1.1 × the floor", ratio, ratio <= 1.1)
    elif what in AT_MOST:
        most, unit = AT_MOST[what]
        figure = row.median("ddprun")
        row.bar(f"≤ {most} {unit}", figure, figure <= most)


STORE_BENCH = str(BUILD / "bench/store_bench")
OUR_STORE = [str(BUILD / "tests/store_host")]
THEIR_STORE = [PYTHON, str(ROOT / "tests/bench/torch_store.py")]


def with_names(kind, command):
    return [PYTHON, str(ROOT / "tests/bench/with_names.py"), kind, *command]


def run_store_bench(options, *contestants):
    """What store_bench measured, by row."""
    commands = [word for contestant in contestants for word in ("--", *contestant)][1:]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as results:
        subprocess.run([STORE_BENCH, *options, "--json", results.name, *commands], stdout=subprocess.DEVNULL, check=True)
        return {line["what"]: line for line in json.load(results)}


def bench_store(quick):
    """The store server beside PyTorch's libuv server, each in a process of its own, under the load of store_bench."""
    repeat = ["--repeat", "1" if quick else "7"]
    rows = {}
    for what, line in run_store_bench(repeat, OUR_STORE, with_names("files", THEIR_STORE),
                                      [str(BUILD / "bench/bare_store")]).items():
        row = rows[what] = Row("store " + what.replace("_", " "), line["unit"])
        row.samples = {name: line[key] for name, key in (("ddprun", "ours"), ("PyTorch", "pytorch"), ("floor", "floor"))
                       if key in line}
        hold_against_store_bar(row, what)
    growth = rows["ops_10000_conns_cpu"].median("ddprun") / rows["ops_100_conns_cpu"].median("ddprun")
    rows["ops_10000_conns_cpu"].bar("≤ 1.5 × that at 100", growth, growth <= 1.5)
    yield from rows.values()
    yield from bench_store_without_name_server(repeat)


def bench_store_without_name_server(repeat):
    """Handshakes while the name server does not answer. PyTorch's server waits for it once, so it gets a few only."""
    ours = run_store_bench([*repeat, "--only", "handshake"], with_names("dead", OUR_STORE))
    theirs = run_store_bench(["--repeat", "1", "--only", "handshake", "--handshakes", "4"],
                             with_names("dead", THEIR_STORE))
    for what, unit in (("handshake_32", "/s"), ("handshake_32_cpu", "us")):
        row = Row(f"store {what.replace('_', ' ')}, name server dead", unit)
        row.samples = {"ddprun": ours[what]["ours"], "PyTorch": theirs[what]["ours"]}
        hold_against_store_bar(row, what)
        yield row
