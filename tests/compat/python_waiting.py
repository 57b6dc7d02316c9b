"""Ranks of unmodified Python over Gloo that do not come where the others wait: which one it is, for each of a table of
faults, by the events and by `ddpctl stacks`. And what else there is in their record.

  python_waiting.py DDPRUN DDPCTL [PYTHON_PACKAGES_OF_THE_BUILD] [CLASS…]

One job has all faults, each in a round of its own: `ddpctl restart` begins the next one, with standbys, which import
PyTorch once for all rounds. With DDPRUN_TEST_FULL=1 each fault is also that of a job of its own without standbys, and of
one on two nodes.
"""
import importlib.util
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

DDPRUN, DDPCTL = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
PACKAGES = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]) else None
FULL = os.environ.get("DDPRUN_TEST_FULL")
RANKS = 3

PROGRAM = '''
import os, pathlib, signal, sys, threading, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1000)


def first_lock_then(first, second):
    with first:
        time.sleep(0.2)
        with second:
            pass


def deadlock():
    one, other = threading.Lock(), threading.Lock()
    threading.Thread(target=first_lock_then, args=(one, other), daemon=True).start()
    first_lock_then(other, one)


def killed_inside():
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()


def loops():
    while True:
        pass


fault = pathlib.Path(sys.argv[1]).read_text()
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
model = DistributedDataParallel(torch.nn.Linear(4, 1))


def step(has=None):
    """One step of a training; with has, whoever has the fault does something else in it."""
    model(torch.ones(2, 4)).sum().backward()
    size = 9 if has == "shape" else 8
    kind = torch.float64 if has == "type" else torch.float32
    sum_up = lambda: dist.all_reduce(torch.ones(size, dtype=kind))
    tell = lambda: dist.broadcast(torch.ones(4), src=1 if has == "root" else 0)
    if has == "swaps":
        tell(), sum_up()
    else:
        has == "skips" or sum_up()
        tell()


for _ in range(5):
    step()
dist.barrier()
is_faulty = rank == (0 if fault in ("evaluates", "saves", "killed late") else last)
if is_faulty:
    print(f"FAULT {fault} {time.monotonic()}", flush=True)
    if fault == "never":
        time.sleep(1000)
    elif fault == "evaluates":  # until the test has seen that the others are said to wait
        open(sys.argv[1] + ".enough").read()
    elif fault == "saves":
        while not os.path.exists(sys.argv[1] + ".saved"):
            torch.save(torch.ones(100_000), sys.argv[1] + ".pt")
            time.sleep(0.1)
    elif fault == "loader":
        next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))
    elif fault == "loops":
        loops()
    elif fault == "deadlock":
        deadlock()
    elif fault == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "killed":
        killed_inside()
if fault == "killed" and not is_faulty:
    time.sleep(3)
for _ in range(10):
    if fault == "slow":
        time.sleep(0.5 if is_faulty else 0.1)
    step(has=fault if is_faulty else None)
dist.barrier()
print("DONE", flush=True)
if fault != "nothing":
    time.sleep(1000)
'''

# What is expected of each fault, and why:
#   waiting  the event names the rank, and nothing is called hung without proof
#   hung     there is a proof: the calls differ, or a signal has stopped the rank
#   failed   a worker ends by itself, and the report explains its death
#   done     nobody waits for ever
FAULTS = {
    "never": "waiting",
    "loops": "waiting",
    "deadlock": "waiting",
    "loader": "waiting",
    # Two ranks wait for each other; the third one gets what it waits for and goes on, and its record decides.
    "root": "hung mismatch",
    "stops": "hung stopped",
    "skips": "hung mismatch",
    "swaps": "hung mismatch",
    # Gloo notices that it gets more bytes than it has room for; whoever gets fewer waits.
    "shape": "hung mismatch or failed",
    "type": "hung mismatch or failed",
    "evaluates": "done after waiting",
    "saves": "done after waiting",
    "slow": "done",
    "killed": "failed",
}
STACKS = {
    "never": ["<module> (program.py:"],
    "loops": ["loops (program.py:"],
    "deadlock": ["first_lock_then (program.py:", "deadlock (program.py:"],
    "loader": ["_poll (connection.py:", "_next_data (dataloader.py:"],
}


def eventually(what, limit=60):
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.02)
    return what()


class Job:
    """One or two agents that run the program; what they say."""

    def __init__(self, folder, nodes=1, options=(), program=PROGRAM, **environment):
        self.folder = Path(folder)
        self.script, self.fault = self.folder / "program.py", self.folder / "fault"
        self.script.write_text(program)
        self.environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                            "PYTHON_EXEC": sys.executable, "DDPRUN_CONTROL_DIR": str(self.folder / "control"), **environment}
        self.options, self.nodes, self.agents = options, nodes, []
        os.mkfifo(f"{self.fault}.enough")

    def start(self, fault):
        self.fault.write_text(fault)
        port = None
        for node in range(self.nodes):
            place = []
            if self.nodes > 1:
                port = port or free_port()
                place = [f"--nnodes={self.nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1",
                         f"--master-port={port}"]
            count = RANKS if self.nodes == 1 else 2 - node
            self.agents.append(subprocess.Popen(
                [DDPRUN, f"--nproc-per-node={count}", "--shutdown-timeout=0", f"--events={self.folder}/events{node}",
                 *place, *self.options, self.script, self.fault],
                env=self.environment, cwd=self.folder, text=True, stdout=open(self.folder / f"out{node}", "w"),
                stderr=subprocess.STDOUT))

    def go_on(self, fault):
        """Ends the long work of one rank that the others wait for."""
        if fault == "evaluates":
            os.close(os.open(f"{self.fault}.enough", os.O_WRONLY | os.O_NONBLOCK))
        else:
            Path(f"{self.fault}.saved").touch()

    def events(self):
        found = []
        for node in range(self.nodes):
            file = self.folder / f"events{node}"
            text = file.read_text() if file.exists() else ""
            found += [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return sorted(found, key=lambda event: event["monotonic_us"])

    def out(self):
        return "".join((self.folder / f"out{node}").read_text() for node in range(self.nodes))

    def ctl(self, *words):
        if self.nodes > 1:
            words = (*words, str(self.agents[0].pid))
        return subprocess.run([DDPCTL, *words], env=self.environment, capture_output=True, text=True, timeout=60).stdout

    def restart(self):
        """The round that has begun by that; None: none runs that could be ended."""
        told = re.match(r"round (\d+) runs", self.ctl("restart"))
        return told and int(told[1])

    def standbys(self):
        status = json.loads(self.ctl("status", "--json") or "{}")
        return ((status.get("nodes") or [{}])[0].get("standbys") or {}).get("waiting", 0)

    def sees(self, kind, **expected):
        """The first event of that kind with what is expected of it. On a busy machine other ranks can be late before that."""
        return eventually(lambda: next((event for event in self.events()
                                        if event["event"] == kind and expected.items() <= event.items()), None))

    def calls(self, rank):
        """What the status says of the calls of a rank: by group."""
        status = json.loads(self.ctl("status", "--json") or "{}")
        workers = [worker for node in status.get("nodes", []) for worker in node["workers"]]
        return {group["group"]: group for worker in workers if worker["rank"] == rank for group in worker["calls"]}

    def end(self):
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            agent.wait(timeout=60)


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Faults(unittest.TestCase):
    latencies = {}

    def look(self, job, fault, round):
        """That what happens in this round is what the table says."""
        expected = FAULTS[fault]
        rank = 0 if fault in ("evaluates", "saves") else RANKS - 1

        def of(kind):
            return [event for event in job.events() if event["event"] == kind and event.get("round") == round]

        def waiting():
            """Since the fault: on a busy machine a rank can be late for the first group, too."""
            lines = [line for line in job.out().splitlines() if f"FAULT {fault} " in line]
            since = float(lines[-1].rpartition(" ")[2]) if lines else float("inf")
            return [event for event in of("waiting_for") if event["monotonic_us"] / 1e6 > since]

        def is_over():
            return job.out().count("DONE") >= RANKS * (self.done + 1)

        def what():
            if of("hung"):
                return "hung " + of("hung")[0]["why"]
            if any(not event["was_told_to_stop"] if "was_told_to_stop" in event else True
                   for event in of("worker_exited")):
                return "failed"
            if is_over():
                return "done"
            return "waiting" if waiting() and expected == "waiting" else None

        began = time.monotonic()
        if expected == "done after waiting":
            eventually(lambda: waiting() or of("worker_exited"))
            job.go_on(fault)
        found = eventually(what)
        print(f"{fault}: {found} after {time.monotonic() - began:.1f} s", flush=True)
        told = f"{fault}: {found}\n{job.out()[-3000:]}\n{of('waiting_for')}{of('hung')}"
        self.assertTrue(found and found in expected, told)
        if expected == "done after waiting" or found == "waiting":
            self.assertEqual(waiting()[0]["ranks"], [rank], told)
            self.assertIn(waiting()[0]["call"], ("all_reduce", "broadcast"), told)
        if found.startswith("hung"):
            self.assertEqual(of("hung")[0]["ranks"], [rank], told)
        else:
            self.assertEqual(of("hung"), [], told)
        if found == "failed":
            of_rank = [event for event in of("worker_exited") if event["rank"] == rank or fault != "killed"]
            self.assertTrue(of_rank, told)
            if fault == "killed":
                self.assertEqual(of_rank[0]["signal_name"], "SIGKILL", told)
        if found == "done":
            self.done += 1
        lines = [line for line in job.out().splitlines() if f"FAULT {fault} " in line]
        named = (of("hung") or waiting() or [None])[0]
        if named and fault not in ("slow", "killed"):
            since = float(lines[-1].rpartition(" ")[2])
            self.latencies.setdefault(fault, []).append(round_2(named["monotonic_us"] / 1e6 - since))
        if fault in STACKS:
            stacks = job.ctl("stacks", "--all", "--rank", str(rank))
            for frame in STACKS[fault]:
                self.assertIn(frame, stacks, fault)
            self.assertNotIn("ddprun", stacks)

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder, self.done = temporary.name, 0

    def test_each_fault_in_a_round_of_standbys(self):
        job = Job(self.folder, options=[f"--standby={RANKS}", "--preload=torch.nn.parallel", "--max-restarts=1000"])
        self.addCleanup(job.end)
        round = None
        for fault in FAULTS:
            if round is None:
                job.start(fault)
                round = 0
            else:
                eventually(lambda: job.standbys() == RANKS)
                job.fault.write_text(fault)
                # A fault that ends workers begins rounds of its own: the one that counts begins after the file is written.
                round = eventually(job.restart)
            self.assertIsNotNone(round, job.out())
            with self.subTest(fault):
                self.look(job, fault, round)

    @unittest.skipUnless(FULL, "only with DDPRUN_TEST_FULL")
    def test_each_fault_in_a_job_of_its_own(self):
        for nodes in (1, 2):
            for fault in FAULTS:
                with self.subTest(fault, nodes=nodes), tempfile.TemporaryDirectory() as folder:
                    self.done = 0
                    job = Job(folder, nodes)
                    try:
                        job.start(fault)
                        self.look(job, fault, 0)
                    finally:
                        job.end()

    @classmethod
    def tearDownClass(cls):
        print("seconds from the fault to the name:", cls.latencies)


WAITS = "import time; print('WAITS', flush=True); time.sleep(1000)"
GROUPS = f"""
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
for _ in range(3):
    dist.all_reduce(torch.ones(5))
if rank < 2:
    dist.all_reduce(torch.ones(5), group=pair)
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0)
dist.all_reduce(torch.ones(5))
dist.destroy_process_group(pair)
{{}}
{WAITS}
"""


class Opening(unittest.TestCase):
    """What the hooks do with the descriptor that they are given, by an agent of any version."""

    def setUp(self):
        spec = importlib.util.spec_from_file_location(
            "collectives", Path(__file__).resolve().parents[2] / "worker_lib/python/ddprun/collectives.py")
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.addCleanup(os.environ.pop, "DDPRUN_LINK_RECORD_FD", None)

    def open(self, magic=0x4452435250444400, version=1, size=69632, pid=None, is_inheritable=True):
        self.file = os.memfd_create("record", 0)
        self.addCleanup(os.close, self.file)
        os.ftruncate(self.file, size)
        os.pwrite(self.file, struct.pack("=QIIi", magic, version, 69632, pid or os.getpid()), 0)
        os.set_inheritable(self.file, is_inheritable)
        os.environ["DDPRUN_LINK_RECORD_FD"] = str(self.file)
        return self.module.open_record()

    def test_a_record_of_this_process_is_taken_and_no_other(self):
        self.assertTrue(self.open())
        for other in ({"magic": 1}, {"version": 2}, {"version": 0}, {"size": 4096}, {"pid": 1}, {"is_inheritable": False}):
            self.assertIsNone(self.open(**other), other)
        for text in ("", "x", "-1", "999", "12345678901234567890"):
            os.environ["DDPRUN_LINK_RECORD_FD"] = text
            self.assertIsNone(self.module.open_record(), text)
        del os.environ["DDPRUN_LINK_RECORD_FD"]
        self.assertIsNone(self.module.open_record(), "an older agent")

    def test_it_is_another_librarys_as_soon_as_that_takes_it(self):
        record = self.open()
        self.assertTrue(record.is_ours())
        os.set_inheritable(self.file, False)
        self.assertFalse(record.is_ours())
        record = self.open()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, self.file)
        os.close(null)
        self.assertFalse(record.is_ours(), "its number is another file's")

    def test_it_is_written_as_documented(self):
        record = self.open()
        group = record.add_group("default_pg", 1, 3)
        record.set_calls(group[0], 2)
        call = self.module._Call({"profiling_name": "gloo:broadcast", "input_sizes": [[2, 3]], "input_dtypes": ["Float"]}, 2)
        claims = [record.enter(group, number, call, 1000 + number) for number in range(1, 1027)]
        record.leave(claims[0], 7)  # long written over
        record.leave(claims[-1], 5000)
        turn, _, name_hash, members, rank, calls, name = struct.unpack("=IIQIIQ32s", os.pread(self.file, 64, 128))
        self.assertEqual((turn, members, rank, calls, name.rstrip(b"\0")), (group[1], 3, 1, 2, b"default_pg"))
        self.assertEqual(name_hash, self.module._hash_of(b"default_pg"))
        self.assertEqual(struct.unpack("=Q", os.pread(self.file, 8, 64)), (1026,))
        for claim, left in ((1024, -1025), (1025, 5000)):
            entry = struct.unpack("=QQqqQQHBB4xIi", os.pread(self.file, 64, 4096 + claim % 1024 * 64))
            signature = entry[5]
            self.assertEqual(entry, (2 * claim + 2, claim + 1, 1001 + claim, left, 6, signature, 0, 2, 6, group[1], 2))
            self.assertEqual(signature, self.module._hash_of((6).to_bytes(8, "little")))
        record.remove_group(group[0])
        self.assertEqual(os.pread(self.file, 4, 128), bytes(4))

    def test_beyond_its_places_groups_are_left_out(self):
        record = self.open()
        self.assertEqual([record.add_group(f"group {i}", 0, 2) is None for i in range(50)], [False] * 48 + [True] * 2)


class OfAJob(unittest.TestCase):
    def job(self, program, nodes=1, options=(), **environment):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        job = Job(temporary.name, nodes, options, program=program, **environment)
        self.addCleanup(job.end)
        job.start("nothing")
        return job

    def waits(self, job):
        self.assertTrue(eventually(lambda: job.out().count("WAITS") == RANKS), job.out())

    def expect(self, job, rank, expected):
        """Groups of a rank by name: how many members, its rank, its calls. Beside them a rank has the series of groups that it
        made, and, if it was looked at between two calls, that of messages seen."""
        def is_so():
            return {name: (group["size"], group["rank"], group["calls"]) for name, group in job.calls(rank).items()
                    if not name.endswith((" (made)", " (seen)"))}
        self.assertTrue(eventually(lambda: is_so() == expected), is_so())


BEGIN = """
import os, sys, threading, time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
"""
START = BEGIN + """
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
"""
IN_OPPOSITE_ORDER = START + """
first, second = [dist.new_group([0, 1, 2]) for _ in range(2)][::1 if rank == 0 else -1]
begun = dist.all_reduce(torch.ones(4), group=first, async_op=True)
"""


class Missing(OfAJob):
    """What no collective shows: the missing rank is named, after a second as an observation."""

    def waiting(self, program, **expected):
        job = self.job(program, options=["--hang-timeout=3"], DDPRUN_TEST_MINUTE_MS="1500")
        self.assertTrue(job.sees("waiting_for", **expected), f"{job.out()}{job.events()}")
        hung = job.sees("hung")
        self.assertTrue(hung, job.out())
        return job, hung

    def test_a_rank_that_never_makes_a_group(self):
        for before in ("", "if rank == 2: time.sleep(1000)\n"):  # PyTorch need not be there
            job, hung = self.waiting(before.join(("import os, time\nrank = int(os.environ['RANK'])\n", BEGIN)) + """
if rank == 2:
    def load():
        time.sleep(1000)
    load()
dist.init_process_group("gloo")
""", ranks=[2], call="init_process_group")
            self.assertEqual((hung["ranks"], hung["why"]), ([2], "timeout"))
            line = r"rank 2 has not come to init_process_group, where rank.* waits?, for .*; rank 2: (load|<module>) \(program.py:"
            self.assertTrue(eventually(lambda: re.search(line, job.out())), job.out())

    def test_a_world_size_of_the_programs_own(self):
        job = self.job(BEGIN + 'dist.init_process_group("gloo", world_size=8, rank=rank)\n', DDPRUN_TEST_MINUTE_MS="1500")
        line = (r"init_process_group \(the program asks for world size 8, this job has 3 ranks; leave world_size to the "
                r"environment\) has not ended: ranks 0, 1 and 2 are in it")
        self.assertTrue(eventually(lambda: re.search(line, job.out())), job.out())

    def test_a_rank_that_makes_no_second_group(self):
        _, hung = self.waiting(START + "if rank == 1: time.sleep(1000)\ndist.new_group([0, 1, 2])\n", ranks=[1], call="new_group")
        self.assertEqual(hung["ranks"], [1])

    def test_a_receive_that_waits_for_a_receive(self):
        _, hung = self.waiting(START + "dist.recv(torch.ones(4), 1 - rank) if rank < 2 else time.sleep(1000)\n", call="send_recv")
        self.assertEqual((hung["ranks"], hung["why"]), ([0, 1], "cycle"))

    def test_a_message_that_is_not_sent(self):
        _, hung = self.waiting(START + """
for _ in range(3):
    dist.recv(torch.ones(4), 1) if rank == 0 else dist.send(torch.ones(4), 0) if rank == 1 else None
dist.recv(torch.ones(4), 1) if rank == 0 else time.sleep(1000)
""", ranks=[1], waiting=[0], call="send_recv", number=4)
        self.assertEqual(hung["ranks"], [1])

    def test_monitored_barrier(self):
        _, hung = self.waiting(START + "if rank == 1: time.sleep(1000)\ndist.monitored_barrier()\n",
                               ranks=[1], call="monitored_barrier", number=1)
        self.assertEqual(hung["ranks"], [1])

    def test_a_cycle_is_proved_where_all_threads_wait(self):
        job = self.job(IN_OPPOSITE_ORDER + "begun.wait()\n")
        hung = job.sees("hung")
        self.assertTrue(hung, job.out())
        # Ranks 1 and 2 each make a cycle with rank 0; the one that came later on a busy machine is not proved yet.
        self.assertIn((hung["ranks"], hung["why"]), [(ranks, "cycle") for ranks in ([0, 1, 2], [0, 1], [0, 2])])


# What a healthy program does, so long that a cycle would be told (after 20 s): a job each, all at a time.
LONG_S = 24
LONG = {
    "asynchronous calls of two groups, begun in opposite order": IN_OPPOSITE_ORDER + """
until = time.monotonic() + seconds
while time.monotonic() < until:
    torch.ones(100, 100).sum()
dist.all_reduce(torch.ones(4), group=second)
begun.wait()
""",
    "... and another thread comes, which sleeps": IN_OPPOSITE_ORDER + """
def later():
    time.sleep(seconds)
    dist.all_reduce(torch.ones(4), group=second)
thread = threading.Thread(target=later)
thread.start()
begun.wait()
thread.join()
""",
    "receives that are posted on both sides": START + """
if rank < 2:
    posted = dist.irecv(torch.ones(4), 1 - rank)
    time.sleep(seconds)
    dist.send(torch.ones(4), 1 - rank)
    posted.wait()
""",
    "a pipeline whose first stage computes": START + """
if rank == 0:
    time.sleep(seconds)
if rank > 0:
    dist.recv(torch.ones(4), rank - 1)
if rank < 2:
    dist.send(torch.ones(4), rank + 1)
""",
    "an evaluation on rank 0, and the others in monitored_barrier": START + """
if rank == 0:
    time.sleep(seconds)
dist.monitored_barrier()
""",
    "a download before the first group": BEGIN + """
if rank == 0:
    time.sleep(seconds)
dist.init_process_group("gloo")
""",
    "two ranks that leave early with success": START + """
if rank > 0:
    dist.destroy_process_group()
    sys.exit(0)
time.sleep(seconds)
sys.exit(0)
""",
}

# What is compared as soon as one waits for longer than the patience: the phases of one training, one after the other.
PHASE_S = 3
PHASES = {
    "an evaluation on rank 0": """
    if rank == 0:
        time.sleep(seconds)
    dist.all_reduce(torch.ones(4))
""",
    "a checkpoint of rank 0, and its name for all": """
    if rank == 0:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            torch.save(torch.ones(100_000), "checkpoint.pt")
    name = ["checkpoint.pt" if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    torch.load(name[0])
""",
    "a download on the first rank of the node": """
    if rank == 0:
        time.sleep(seconds)
    dist.barrier()
    if rank > 0:
        time.sleep(seconds)
    dist.barrier()
""",
    "objects of sizes that differ, and one rank that is late": """
    if rank == 2:
        time.sleep(seconds)
    dist.all_gather_object([None] * 3, "x" * 1000 * rank)
    dist.gather_object({"rank": rank}, [None] * 3 if rank == 0 else None)
    dist.scatter_object_list([None], ["a", "bb", "ccc"] if rank == 0 else None)
""",
    "a group that rank 1 makes late, and one of two ranks": """
    if rank == 1:
        time.sleep(seconds)
    late, pair = dist.new_group([0, 1, 2]), dist.new_group([0, 2])
    dist.all_reduce(torch.ones(4), group=late)
    if rank != 1:
        dist.all_reduce(torch.ones(4), group=pair)
""",
    "a monitored_barrier to which all come": """
    time.sleep(seconds if rank == 2 else 0)
    dist.monitored_barrier()
""",
    "a model that rank 0 compiles in its first step": """
    model = torch.compile(torch.nn.Linear(4, 1), backend="aot_eager") if rank == 0 else torch.nn.Linear(4, 1)
    if rank == 0:
        time.sleep(seconds)
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
""",
    "gradients of several batches, which rank 1 takes longer to add up": """
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.no_sync():
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            time.sleep(seconds / 3 if rank == 1 else 0)
    model(torch.ones(2, 4)).sum().backward()
""",
    "uneven batches with join": """
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for _ in range(2 + rank):
            time.sleep(seconds if rank == 2 else 0)
            model(torch.ones(2, 4)).sum().backward()
""",
    "uneven batches with a flag that all ranks reduce": """
    for batch in range(3):
        time.sleep(seconds / 2 if rank == 1 else 0)
        ended = torch.tensor(float(batch == 1 and rank == 0))
        dist.all_reduce(ended)
        if ended:
            break
""",
    "asynchronous gradients, and rank 2 that is late": """
    if rank == 2:
        time.sleep(seconds)
    for each in [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(5)]:
        each.wait()
""",
    "a thread that reduces the loss in a group of its own": """
    losses = dist.new_group([0, 1, 2])
    def of_loss():
        for _ in range(3):
            time.sleep(seconds / 2 if rank == 0 else 0)
            dist.all_reduce(torch.ones(1), group=losses)
    thread = threading.Thread(target=of_loss)
    thread.start()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    thread.join()
""",
    "a ring of messages, one rank after the other": """
    if rank == 0:
        time.sleep(seconds)
        dist.send(torch.ones(4), 1)
        dist.recv(torch.ones(4), 2)
    else:
        dist.recv(torch.ones(4), rank - 1)
        dist.send(torch.ones(4), (rank + 1) % 3)
""",
    "messages in a batch, to and from all": """
    if rank == 1:
        time.sleep(seconds)
    others = [each for each in range(3) if each != rank]
    for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(4), to) for to in others] +
                                       [dist.P2POp(dist.irecv, torch.ones(4), source) for source in others]):
        each.wait()
""",
    "the root of a broadcast goes on, and others take it late": """
    for source in range(3):
        time.sleep(seconds / 2 if rank == 2 else 0)
        dist.broadcast(torch.ones(4), src=source)
""",
    "tensors of lengths that differ, padded": """
    if rank == 0:
        time.sleep(seconds)
    sizes = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(sizes, torch.full((1,), 1.0 + rank))
    longest = int(max(sizes))
    dist.all_gather([torch.empty(longest) for _ in sizes], torch.ones(longest))
""",
}


class Healthy(OfAJob):
    """None is ever called hung, although ranks wait for others in each case."""

    OPTIONS = ["--hang-timeout=auto", "--on-hang=restart"]

    def is_never_hung(self, job):
        self.assertEqual(job.agents[0].wait(timeout=300), 0, job.out())
        self.assertEqual([event for event in job.events() if event["event"] == "hung"], [], job.out())

    def test_for_so_long_that_a_cycle_would_be_told(self):
        jobs = {what: self.job(program.replace("\nrank =", f"\nseconds = {LONG_S}\nrank =") + "\ndist.barrier()\n",
                               options=self.OPTIONS) for what, program in LONG.items()}
        for what, job in jobs.items():
            with self.subTest(what):
                self.is_never_hung(job)

    def test_in_each_phase_of_a_training(self):
        phases = "".join(f"def phase():{code}\nphase()\nprint({what!r}, flush=True)\ndist.barrier()\n"
                         for what, code in PHASES.items())
        job = self.job(START + f"from torch.nn.parallel import DistributedDataParallel\nseconds = {PHASE_S}\n" + phases,
                       options=self.OPTIONS)
        self.is_never_hung(job)
        for what in PHASES:
            self.assertEqual(job.out().count(what), RANKS, what)
        waits = [event for event in job.events() if event["event"] == "waiting_for"]
        self.assertGreaterEqual(len(waits), len(PHASES), "each phase has a wait that is looked at")


class Records(OfAJob):
    def test_a_group_is_made_anew(self):
        job = self.job(GROUPS.format("""
dist.destroy_process_group()
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=3)
other = dist.new_group([0, 1, 2])
rank == 2 or dist.all_reduce(torch.ones(5), group=other)
"""))
        self.assertTrue(job.sees("waiting_for", ranks=[2], group="group 1", number=1), f"{job.out()}{job.events()}")
        # The flight recorder, which has been read now, has calls of a group with that name.
        self.expect(job, 0, {"default_pg": (RANKS, 0, 0), "group 1": (RANKS, 0, 1)})

    def test_messages_between_two_are_no_calls_of_all_and_a_forked_child_does_not_write(self):
        job = self.job(GROUPS.format("""
import multiprocessing
kept = dist.group.WORLD._get_backend(torch.device("cpu"))  # its end would join threads that a child does not have
def child():
    store = dist.HashStore()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    os._exit(5)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(20)
print(f"CHILD {process.exitcode}", flush=True)  # in one piece: all ranks write to one file
"""))
        self.waits(job)
        self.assertEqual(job.out().count("CHILD 5"), RANKS, job.out())
        for rank in range(RANKS):
            messages = {"default_pg 0->1": (2, rank, 1)} if rank < 2 else {}
            self.expect(job, rank, {"default_pg": (RANKS, rank, 4), **messages})


class WithoutHooks(OfAJob):
    """Or where somebody else has the record."""

    def test_without_hooks_there_is_no_record_and_no_handler(self):
        job = self.job(GROUPS.format(""), DDPRUN_PYTHON_HOOKS="0")
        self.waits(job)
        self.assertEqual(job.calls(0), {})
        [pid] = [worker["pid"] for worker in json.loads(job.ctl("status", "--json"))["nodes"][0]["workers"]
                 if worker["rank"] == 0]
        self.assertNotIn("ddprun-record", Path(f"/proc/{pid}/maps").read_text())
        [caught] = [int(line.split()[1], 16) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                    if line.startswith("SigCgt:")]
        self.assertFalse(caught >> 49 & 1)

    def test_the_program_ends_as_without_hooks(self):
        for end, code in (("import sys; sys.exit(7)", 7), ("os._exit(8)", 8))[:None if FULL else 1]:
            job = self.job(f"""
import os, threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(5))
assert threading.active_count() == 1, threading.enumerate()
assert dist.broadcast.__name__ == "broadcast"
dist.broadcast(torch.ones(5), src=1)
dist.barrier()
dist.destroy_process_group()  # else a thread of Gloo may still free a tensor, which aborts an interpreter that ends
{end}
""")
            self.assertEqual(job.agents[0].wait(timeout=60), code, job.out())
            self.assertNotIn("not shown", job.out())

    @unittest.skipUnless(PACKAGES, "without ddprun.torch")
    def test_ddprun_torch_writes_messages_and_has_the_record_for_itself(self):
        for nodes in (1, 2) if FULL else (2,):
            job = self.job("""
import pathlib, time
import torch
import torch.distributed as dist
import ddprun.torch
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(5))
while not pathlib.Path("hooks-have-it").exists():
    time.sleep(0.01)
group = dist.new_group(backend="shm")
rank = dist.get_rank()
for _ in range(3):
    if rank == 0:
        dist.send(torch.ones(3), 2, group=group)
    if rank == 2:
        dist.recv(torch.ones(3), 0, group=group)
dist.all_reduce(torch.ones(5), group=group)
if rank == 0:
    dist.recv(torch.ones(3), 1, group=group)
print("WAITS", flush=True)
time.sleep(1000)
""", nodes, PYTHONPATH=str(PACKAGES))
            for rank in range(RANKS):
                self.assertTrue(eventually(lambda: "default_pg" in job.calls(rank)), job.out())
            (job.folder / "hooks-have-it").touch()
            found = job.sees("waiting_for", ranks=[1], waiting=[0], call="send_recv", number=1)
            self.assertTrue(found, f"{job.out()}{job.events()}")
            self.assertRegex(found["sentence"], "rank 1 has not come to send_recv .* where rank 0 waits")
            calls = job.calls(2)
            self.assertNotIn("default_pg", calls)
            [channel] = [group for name, group in calls.items() if name.endswith(" 0->2")]
            self.assertEqual((channel["size"], channel["rank"], channel["calls"], channel["peer"]), (2, 1, 3, 0))
            self.assertEqual(channel["at"]["operation"], "send_recv")
            self.assertTrue(channel["at"]["is_over"])
            job.end()


def round_2(number):
    return float(f"{number:.2f}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
