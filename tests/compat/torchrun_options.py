"""What each option of torchrun does under ddprun: claimed, tried under both launchers, and written into
launcher/README.md.

For every option that torchrun's own parser knows there is a row below: command lines that give the same job under both,
command lines that ddprun refuses with one sentence (and what torchrun does with them), and what else differs, with a
proof. Whatever is claimed is run; the table there is made from the rows and compared with what stands there.

torchrun is the one of the Python that runs this: PyTorch 2.11 in the usual run, the newest with scripts/test --full
(scripts/newest_torch). The rows are about all versions in between; `since` and `before` say which one a case is about.

With DDPRUN_TEST_FULL=1 all command lines are run, otherwise every second one of each kind and option.

usage: torchrun_options.py DDPRUN [--update-readme] [--only OPTION]
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import torch.distributed.run

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
FULL = os.environ.get("DDPRUN_TEST_FULL")
FREE_PORT = (2, 12)  # from this version on torchrun takes a free port on one node, too

README = pathlib.Path(__file__).resolve().parents[2] / "launcher/README.md"
BEGIN = "<!-- torchrun's options (written by tests/compat/torchrun_options.py --update-readme) -->"
END = "<!-- end of torchrun's options -->"

# Every line of it says "probe", so that it can be told from what launchers say.
PROBE = """
import os, sys
names = "LOCAL_RANK RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE".split()
names += "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE OMP_NUM_THREADS".split()
names += "CUDA_VISIBLE_DEVICES TORCHELASTIC_SIGNALS_TO_HANDLE".split() + os.environ["SHOW"].split()
sys.stdout.write(f"probe {[os.environ.get(name) for name in names]} {sys.argv[1:]} {sys.stdout.write_through} {__name__}\\n")
sys.stdout.flush()
sys.stderr.write(f"probe on stderr, local rank {os.environ['LOCAL_RANK']}\\n")
if "fail-once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
if "fail" in sys.argv:
    sys.exit(3)
"""


@dataclasses.dataclass
class Same:
    """Both do the same job: exit code, what workers saw and wrote, log files."""

    words: list
    variables: dict = dataclasses.field(default_factory=dict)
    show: str = ""  # more variables that must be equal
    since: tuple = ()  # torchrun's version
    before: tuple = (9,)
    cpus: int = 0  # how many this process may use; 0: all


@dataclasses.dataclass
class Refused:
    """ddprun: one sentence, exit code 2, nothing started. torchrun: this exit code (None: not tried here)."""

    words: list
    torchrun: int | None = 1
    variables: dict = dataclasses.field(default_factory=dict)
    since: tuple = ()
    before: tuple = (9,)


@dataclasses.dataclass
class Differs:
    """Both run it; what `proof` says of the two outcomes holds."""

    words: list
    proof: object
    variables: dict = dataclasses.field(default_factory=dict)
    show: str = ""
    since: tuple = ()
    before: tuple = (9,)


@dataclasses.dataclass
class Row:
    option: str  # torchrun's first long spelling
    answer: str  # for the table: the same, or what differs and why
    cases: list
    since: tuple = ()  # the first version of torchrun that has it
    variable: str = ""  # for versions without it


C10D = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
LOGS = ["--log-dir={folder}"]
P = ["{probe}"]
GPUS = {"CUDA_VISIBLE_DEVICES": "4,5"}


def event_names(outcome):
    return re.findall(r"torchelastic\.worker\.status\.(\w+)", outcome.said)


ROWS = [
    Row("--nnodes", "the same; several nodes need a port that all can know, so port 0 is refused", [
        Refused(["--nnodes=1:2", *C10D, *P], torchrun=None), Refused(["--nnodes=2", "--standalone", *P], torchrun=None),
        Same(["--nnodes=1", *P]), Same(["--nnodes=1:1", *P]), Same(P, {"PET_NNODES": "1:1"}),
        Refused(["--nnodes=1:2:3", *P]), Refused(["--nnodes=0", *P]), Refused(["--nnodes=2:1", *P]),
        Refused(["--nnodes=x", *P]), Refused(P, variables={"PET_NNODES": ""})]),
    Row("--nproc-per-node",
        "the same; NVIDIA's GPUs are counted without PyTorch, other accelerators by the job's own PyTorch, or for programs that Python does not run AMD's by the kernel's list; `cpu` and `auto` count the CPUs that affinity allows, as torchrun does since 2.12; also `usable-cpus`: those that affinity and cgroup leave", [
            Same(["--nproc-per-node=3", *P]), Same(["--nproc-per-node=cpu", *P]),
            Same(["--nproc-per-node=cpu", *P], cpus=1, since=(2, 12)),
            Same(["--nproc-per-node=auto", *P], {"CUDA_VISIBLE_DEVICES": ""}, cpus=1, since=(2, 12)),
            Same(P, {"PET_NPROC_PER_NODE": "2"}),
            Refused(["--nproc-per-node=0", *P]), Refused(["--nproc-per-node=-1", *P]),
            Refused(["--nproc-per-node=two", *P]), Refused(["--nproc-per-node=xpu", *P]),
            Refused(["--nproc-per-node=gpu", *P], variables={"CUDA_VISIBLE_DEVICES": ""}),
            Refused(P, variables={"PET_NPROC_PER_NODE": "two"})]),
    Row("--rdzv-backend", "the same for `static` and `c10d`; `etcd` and `etcd-v2` are one, by etcd's v3 API; plug-ins are refused", [
        Same(["--rdzv-backend=static", *P]), Same([*C10D, *P]),
        Same(["--rdzv-endpoint=localhost:0", *P], {"PET_RDZV_BACKEND": "c10d"}),
        Refused(["--rdzv-backend=foo", *P])]),
    Row("--rdzv-endpoint", "the same; several nodes have no default for it, but with `static`", [
        Refused(["--nnodes=2", "--rdzv-backend=c10d", *P], torchrun=None),
        Same(["--rdzv-endpoint=localhost:{port}", *P], show="MASTER_ADDR MASTER_PORT"),
        Same(P, {"PET_RDZV_ENDPOINT": "localhost:{port}"}, show="MASTER_ADDR MASTER_PORT"),
        Refused(["--rdzv-endpoint=node0", *P]), Refused(["--rdzv-endpoint=node0:", *P]),
        Refused(["--rdzv-endpoint=node0:65536", *P])]),
    Row("--rdzv-id", "the same; empty it is refused on several nodes, where each would take another random one; on one node it is kept, where torchrun since 2.12 takes a random one with its free port", [
        Refused(["--nnodes=2", "--rdzv-id=", *P], torchrun=None),
        Same([*C10D, "--rdzv-id=job7", *P], show="TORCHELASTIC_RUN_ID"),
        Same(P, {"PET_RDZV_ID": "job8"}, show="TORCHELASTIC_RUN_ID", before=FREE_PORT),
        Same(["--master-port={port}", *P], {"PET_RDZV_ID": "job8"}, show="TORCHELASTIC_RUN_ID"),
        Differs(P, lambda ours, theirs: "job8" in ours.lines[0] and "job8" not in theirs.lines[0],
                {"PET_RDZV_ID": "job8"}, show="TORCHELASTIC_RUN_ID", since=FREE_PORT),
        Differs([*C10D, "--rdzv-id=", *P], lambda ours, theirs: ours.code == theirs.code == 0)]),
    Row("--rdzv-conf", "the same keys, and `reconnect_grace`, `token_file`; `cas_backoff_max_seconds` (2.15) is accepted without effect: nothing is compared and set here; a node is lost after 3 × 2 s of silence, not 3 × 5; times must be whole seconds of 1 or more, and `is_host` true or false; quotes around the whole, a pair or a value are taken off, where torchrun takes them for a part of the key or the value", [
        Same(["--rdzv-conf=timeout=60,use_libuv=0", *P]), Same(P, {"PET_RDZV_CONF": "timeout=60"}),
        # As PyTorch's own tests of torchrun have it.
        Differs(["--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'", "--master-port={port}", *P],
                lambda ours, theirs: (ours.code, theirs.code) == (0, 1)),  # static reads timeout: "5'"
        Same([*C10D, "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'", *P]),
        Same([*C10D, "--rdzv-conf=cas_backoff_max_seconds=0.5", *P]),
        Refused([*C10D, "--rdzv-conf=cas_backoff_max_seconds=-1", *P], since=(2, 15)),
        Refused(["--rdzv-conf=a", *P]), Refused(["--rdzv-conf=a=", *P]), Refused(["--rdzv-conf==b", *P]),
        Refused([*C10D, "--rdzv-conf=backend=c10d", *P]), Refused([*C10D, "--rdzv-conf=join_timeout=0", *P]),
        Refused([*C10D, "--rdzv-conf=is_host=perhaps", *P])]),
    Row("--standalone", "the same; with `store_type=file` it is refused, and no file `localhost:0` is made", [
        Same(["--standalone", "--nproc-per-node=2", *P]), Same(P, {"PET_STANDALONE": "1"}),
        Refused(["--standalone=1", *P], torchrun=2),
        Refused(["--standalone", "--rdzv-conf=store_type=file", *P], torchrun=0)]),
    Row("--max-restarts", "the same; the exit code at the end is the worker's, not 1", [
        Same(["--max-restarts=2", *P, "fail-once"]), Same([*P, "fail-once"], {"PET_MAX_RESTARTS": "1"}),
        Refused(["--max-restarts=-1", *P]), Refused(["--max-restarts=x", *P], torchrun=2),
        Refused(P, torchrun=2, variables={"PET_MAX_RESTARTS": "x"}),
        Differs([*P, "fail"], lambda ours, theirs: (ours.code, theirs.code) == (3, 1))]),
    Row("--monitor-interval", "accepted, without effect: a worker's end is an event here, not looked for", [
        Same(["--monitor-interval=0.3", *P]), Same(P, {"PET_MONITOR_INTERVAL": "1"}),
        Refused(["--monitor-interval=0", *P]), Refused(["--monitor-interval=-1", *P]),
        Refused(["--monitor-interval=x", *P], torchrun=2)]),
    Row("--start-method", "accepted, without effect: every worker is a process of its own; a wrong variable is refused too", [
        Same(["--start-method=spawn", *P]), Same(P, {"PET_START_METHOD": "fork"}),
        Refused(["--start-method=foo", *P], torchrun=2),
        Refused(P, torchrun=0, variables={"PET_START_METHOD": "foo"})]),
    Row("--event-log-handler", "the same records; `--events` has more, with times; plug-ins are refused", [
        Same(["--event-log-handler=null", *P]), Same(P, {"PET_EVENT_LOG_HANDLER": "null"}),
        Differs(["--event-log-handler=console", "--nproc-per-node=2", *P],
                lambda ours, theirs: event_names(ours) == event_names(theirs) != []),
        Refused(["--event-log-handler=foo", *P])]),
    Row("--role", "the same", [Same(["--role=trainer", "--tee=3", *LOGS, *P]), Same(P, {"PET_ROLE": "x y"})]),
    Row("--module", "the same", [
        Same(["-m", "package.worker", "a"]), Same(["package.worker", "a"], {"PET_MODULE": "1"}),
        Same(["-m", "package.worker", "--", "--depth=26"]), Same(["-m", "--", "package.worker", "--", "a"])]),
    Row("--no-python", "the same; without it too, [programs and scripts for other interpreters](#what-is-executed) are executed", [
        Same(["--no-python", "{python}", *P, "${local_rank}"]),
        Same(["{python}", *P], {"PET_NO_PYTHON": "1"}),
        Same(["--no-python", "{python}", "--", *P, "--", "a"]), Same(["--no-python", "--", "{python}", *P, "--"]),
        # The first "--" of a command line is dropped, also right after the program.
        *(Same(words) for words in ([*P, "--", "--x"], [*P, "--", "--", "--x"], [*P, "--"], ["--", *P, "--x"],
                                    ["--", *P, "--", "--x"], [*P, "a", "--", "--x"])),
        Differs(["{python}", *P], lambda ours, theirs: (ours.code, theirs.code) == (0, 1)),
        Refused(["--no-python", "-m", *P])]),
    Row("--run-path", "the same; the workers are sessions of their own, as all workers", [
        Same(["--run-path", *P, "a"]), Same(P, {"PET_RUN_PATH": "1"}), Same(["--run-path", *P, "--", "--", "a"])]),
    Row("--log-dir", "the same; nothing in it is ever deleted", [
        Same(["--log-dir={folder}", "-r3", *P]), Same(["-r3", *P], {"PET_LOG_DIR": "{folder}"}),
        Same(["--log-dir=/dev/null", "-r3", *P]),
        Refused(["--log-dir={probe}", *P])]),
    Row("--redirects", "the same; local ranks may have several digits", [
        *(Same([f"-r{digit}", "--nproc-per-node=2", *LOGS, *P]) for digit in "0123"),
        Same(["--redirects", "0:1,1:2", "--nproc-per-node=2", *LOGS, *P]), Same([*LOGS, *P], {"PET_REDIRECTS": "3"}),
        Differs(["-r", "10:3", *P], lambda ours, theirs: (ours.code, theirs.code) == (0, 1)),
        Refused(["-r4", *P]), Refused(["-r", "x", *P]), Refused(["-r", "0:4", *P])]),
    Row("--tee", "the same, as whole lines and at once; local ranks may have several digits", [
        *(Same([f"-t{digit}", "--nproc-per-node=2", *LOGS, *P]) for digit in "0123"),
        Same(["--tee", "0:3", "--redirects=1:3", "--nproc-per-node=2", *LOGS, *P]), Same([*LOGS, *P], {"PET_TEE": "3"}),
        Same(["-t3", *LOGS, *P], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank} $other>"}),
        Differs(["-t", "10:3", *P], lambda ours, theirs: (ours.code, theirs.code) == (0, 1)),
        Refused(["-t4", *P]), Refused(["-t", "0:1,2", *P])]),
    Row("--local-ranks-filter", "the same", [
        Same(["--local-ranks-filter=1", "--nproc-per-node=2", *P]),
        Same(["-t3", "--local-ranks-filter=0,2", "--nproc-per-node=3", *LOGS, *P]),
        Same(["--nproc-per-node=2", *P], {"PET_LOCAL_RANKS_FILTER": "0"}),
        Refused(["--local-ranks-filter=x", *P])]),
    Row("--duplicate-stdout-filters", "the same", [
        Same(["-t3", "--duplicate-stdout-filters=nothing,'1'", "--nproc-per-node=2", *LOGS, *P]),
        Same(["-t3", *LOGS, *P], {"PET_DUPLICATE_STDOUT_FILTERS": "[',, '"})]),
    Row("--duplicate-stderr-filters", "the same", [
        Same(["-t3", "--duplicate-stderr-filters=rank 1", "--nproc-per-node=2", *LOGS, *P]),
        Same(["-t3", *LOGS, *P], {"PET_DUPLICATE_STDERR_FILTERS": "stderr,, local"})]),
    Row("--node-rank", "the same; it must be one of `--nnodes`; with `c10d`, where torchrun ignores it, the order that is wanted", [
        Same(["--node-rank=0", *P]), Same(P, {"PET_NODE_RANK": "0"}),
        Refused(["--node-rank=x", *P], torchrun=2), Refused(["--node-rank=1", *P], torchrun=None)]),
    Row("--master-addr", "the same; `[::1]` is `::1`; `HOST:PORT` and URLs are refused", [
        Same(["--master-addr=localhost", "--master-port={port}", *P], show="MASTER_ADDR MASTER_PORT"),
        Same(["--master-port={port}", *P], {"PET_MASTER_ADDR": "localhost"}, show="MASTER_ADDR")]),
    Row("--master-port", "the same; not given, on one node, it is a free port, as under torchrun since 2.12, so that two jobs never meet", [
        Same(["--nproc-per-node=2", *P], since=FREE_PORT),
        Same(["--master-port={port}", *P], show="MASTER_ADDR MASTER_PORT"),
        Same(P, {"PET_MASTER_PORT": "{port}"}, show="MASTER_ADDR MASTER_PORT"),
        Refused(["--master-port=x", *P], torchrun=2), Refused(["--master-port=65536", *P])]),
    Row("--local-addr", "the same", [
        Same([*C10D, "--local-addr=127.0.0.1", *P], show="MASTER_ADDR"),
        Same([*C10D, *P], {"PET_LOCAL_ADDR": "127.0.0.1"}, show="MASTER_ADDR")]),
    Row("--logs-specs", "the same; plug-ins are refused, and `PET_LOGS_SPECS` counts", [
        Same(["--logs-specs=default", *P]), Refused(["--logs-specs=foo", *P]),
        Refused(P, torchrun=0, variables={"PET_LOGS_SPECS": "foo"})]),
    Row("--numa-binding", "the same CPUs, without `numactl`; `PET_NUMA_BINDING` counts", [
        # On machines with GPUs; the CPU sets themselves: NumaBinding in tests/unit/launcher/machine/placement_test.cpp.
        Refused(["--numa-binding=foo", *P], torchrun=2), Refused(P, torchrun=0, variables={"PET_NUMA_BINDING": "foo"}),
        Refused(["--numa-binding=node", *P], variables={"CUDA_VISIBLE_DEVICES": ""})]),
    Row("--signals-to-handle", "the same; a list without any signal, or with one that nobody can handle, is refused; the exit code is 128 + signal, not 1", [
        Same(["--signals-to-handle=SIGTERM,SIGUSR1", *P]), Same(P, {"PET_SIGNALS_TO_HANDLE": "SIGINT"}),
        Refused(["--signals-to-handle=SIGKILL", *P]), Refused(["--signals-to-handle=SIGSTOP", *P]),
        Refused(["--signals-to-handle=SIGFOO", *P], torchrun=0)]),
    Row("--virtual-local-rank", "the same", [
        Same(["--virtual-local-rank", "--nproc-per-node=2", *P]),
        Same(["--virtual-local-rank", "--nproc-per-node=2", *P], GPUS),
        Same(["--nproc-per-node=2", *P], {"PET_VIRTUAL_LOCAL_RANK": "1", **GPUS}),
        Same(["--virtual-local-rank", "--nproc-per-node=2", *P], {"HIP_VISIBLE_DEVICES": "6,7", **GPUS},
             show="HIP_VISIBLE_DEVICES", since=(2, 15)),
        Refused(["--virtual-local-rank", "--nproc-per-node=3", *P], variables=GPUS)]),
    Row("--shutdown-timeout", "the same, also fractions of seconds; after a failure the time is that of `--failure-shutdown-timeout`", [
        Same(["--shutdown-timeout=5", *P]), Same(P, {"PET_SHUTDOWN_TIMEOUT": "5"}),
        Same(P, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}),
        Differs(["--shutdown-timeout=0.5", *P], lambda ours, theirs: (ours.code, theirs.code) == (0, 2)),
        Refused(["--shutdown-timeout=-1", *P]), Refused(["--shutdown-timeout=x", *P], torchrun=2),
        Refused(P, torchrun=2, variables={"PET_SHUTDOWN_TIMEOUT": "x"}),
        Refused(P, variables={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"})],
        since=(2, 12), variable="PET_SHUTDOWN_TIMEOUT"),
    Row("--log-line-prefix-template", "the same with `--tee`; without it, lines of the console have the prefix, too", [
        Same(["-t3", "--log-line-prefix-template=<${hostname} ${rank} $other> ", "--nproc-per-node=2", *LOGS, *P]),
        Same(["-t3", *LOGS, *P], {"PET_LOG_LINE_PREFIX_TEMPLATE": "${local_rank}|"}),
        Same(["-t3", "--log-line-prefix-template=", *LOGS, *P]),
        Differs(["--log-line-prefix-template=<${rank}> ", *P],
                lambda ours, theirs: ours.lines == ["<0> " + line for line in theirs.lines] != [])],
        since=(2, 14), variable="PET_LOG_LINE_PREFIX_TEMPLATE"),
    Row("--print-completion", "for `bash`, `zsh` and `fish`, without a package; `tcsh` is refused", [
        Differs(["--print-completion=bash", *P], lambda ours, theirs: ours.code == 0 and "shtab" in theirs.said),
        Refused(["--print-completion=tcsh", *P], torchrun=None),
        Refused(["--print-completion=x", *P], torchrun=2)],
        since=(2, 14)),
]


@dataclasses.dataclass
class Outcome:
    code: int
    lines: list  # of workers, on the launcher's stdout and stderr
    files: dict  # below the log folder: lines by path
    said: str  # the whole stderr

    def job(self):
        return (self.code, self.lines, self.files)


class Workplace:
    """A folder with the probe in it, and the two launchers in it."""

    def __init__(self, ddprun, folder):
        self.ddprun, self.folder = ddprun, folder
        (folder / "package").mkdir()
        for name in ("probe.py", "package/worker.py", "package/__init__.py"):
            (folder / name).write_text("" if name.endswith("__init__.py") else PROBE)

    def run(self, case, port, launcher):
        """The case under one launcher; `launcher` takes (words, environment, stdout, stderr) and returns the exit code."""
        all_cpus = os.sched_getaffinity(0)
        if allowed := getattr(case, "cpus", 0):
            os.sched_setaffinity(0, sorted(all_cpus)[:allowed])
        try:
            return self.run_here(case, port, launcher)
        finally:
            os.sched_setaffinity(0, all_cpus)

    def run_here(self, case, port, launcher):
        logs = pathlib.Path(tempfile.mkdtemp(dir=self.folder))

        def filled(text):
            for name, value in {"folder": logs, "port": port, "python": sys.executable, "probe": "probe.py"}.items():
                text = text.replace("{" + name + "}", str(value))
            return text

        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PET_", "DDPRUN_", "TORCHELASTIC_", "TORCH_ELASTIC_", "OMP_", "CUDA_", "HIP_"))}
        environment |= {"VIRTUAL_ENV": sys.prefix, "PYTHONPATH": str(self.folder), "TMPDIR": str(self.folder),
                        "SHOW": getattr(case, "show", "")}
        environment |= {name: filled(value) for name, value in case.variables.items()}
        with open(self.folder / "out", "w+b") as out, open(self.folder / "err", "w+b") as err:
            code = launcher([filled(word) for word in case.words], environment, out, err)
            out.seek(0)
            err.seek(0)
            stdout, stderr = out.read().decode(), err.read().decode()
        lines = sorted(line for line in (stdout + stderr).splitlines() if re.search(r"probe (\[|on stderr,)", line))
        files = {}
        for path in sorted(logs.rglob("*.log")):
            run_folder, *rest = path.relative_to(logs).parts  # <run id>_<random>/…
            files["/".join(rest)] = sorted(path.read_text().splitlines())
        return Outcome(code, lines, files, stderr), stdout

    def under_ddprun(self, words, environment, out, err):
        done = subprocess.run([self.ddprun, *words], cwd=self.folder, env=environment, stdout=out, stderr=err,
                              stdin=subprocess.DEVNULL, timeout=120)
        return done.returncode

    def under_torchrun(self, words, environment, out, err):
        if VERSION < FREE_PORT and not any(name in " ".join(words) + " ".join(environment) for name in
                   ("master-port", "rdzv-endpoint", "MASTER_PORT", "RDZV_ENDPOINT", "standalone")):
            environment["PET_MASTER_PORT"] = str(free_port())  # its own default is the whole machine's
        return run_torchrun(self.folder, words, environment, out, err)


def run_torchrun(folder, words, environment, out, err):
    """torchrun as it is, in a fork of this process: its imports take 20 times as long as the job. Its exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        become_torchrun(folder, words, environment, out, err)
    deadline = time.monotonic() + 120
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, 9)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def become_torchrun(folder, words, environment, out, err):
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        torch.distributed.run.main(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def problems_of(case, workplace):
    port = str(free_port())
    ours, our_stdout = workplace.run(case, port, workplace.under_ddprun)
    if isinstance(case, Refused):
        if ours.code != 2 or ours.lines or our_stdout or ours.said.count("\n") != 1 or not ours.said.startswith("ddprun: "):
            yield f"ddprun does not refuse it: {ours} {our_stdout}"
        if case.torchrun is not None:
            theirs, _ = workplace.run(case, port, workplace.under_torchrun)
            if theirs.code != case.torchrun:
                yield f"torchrun ends with {theirs.code}: {theirs.said[-1000:]}"
        return
    theirs, _ = workplace.run(case, port, workplace.under_torchrun)
    if isinstance(case, Same):
        if not ours.lines and not ours.files:
            yield "no worker has said anything"
        for name, our_part, their_part in zip(("exit code", "output", "files"), ours.job(), theirs.job()):
            if our_part != their_part:
                yield f"{name}: ddprun {our_part!r}, torchrun {their_part!r}"
        if ours.job() != theirs.job():
            yield f"ddprun said {ours.said[-600:]}\ntorchrun said {theirs.said[-600:]}"
    elif not case.proof(ours, theirs):
        yield f"it does not differ as claimed: ddprun {ours}, torchrun {theirs}"


def chosen(cases):
    """Those that are run: of each kind, the first one among them."""
    of_kind = {kind: [case for case in cases if type(case) is kind] for kind in (Same, Refused, Differs)}
    return [case for some in of_kind.values() for case in (some if FULL else some[::2])]


def parser_options():
    """What torchrun itself knows: {first long spelling: (all spellings, its variable)}."""
    found = {}
    for action in torch.distributed.run.get_args_parser()._actions:
        if action.option_strings and action.dest != "help":
            long = [name for name in action.option_strings if name.startswith("--")]
            reads_variable = type(action).__name__ in ("env", "check_env")
            variable = "PET_" + action.dest.upper() if reads_variable else ""
            found[long[0].replace("_", "-")] = (action.option_strings, variable)
    return found


def refused_spellings(ddprun, row, spellings):
    value = {"--nnodes": "1", "--nproc-per-node": "1", "--rdzv-backend": "static", "--rdzv-endpoint": "localhost:1",
             "--rdzv-conf": "timeout=1", "--start-method": "fork", "--event-log-handler": "null", "--log-dir": "logs",
             "--logs-specs": "default", "--signals-to-handle": "SIGTERM", "--numa-binding": None,
             "--print-completion": "bash"}.get(row.option, "1")
    is_flag = row.option in ("--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank")
    for spelling in spellings:
        if value is None:
            continue  # needs a GPU
        words = [spelling] if is_flag else [spelling, value]
        if row.option == "--node-rank":
            words[1:] = ["0"]
        done = subprocess.run([ddprun, "--dry-run", *words, "/bin/true"], capture_output=True, text=True)
        if done.returncode != 0:
            yield f"spelling {spelling}: {done.stderr}"


def version_text(version):
    return ".".join(map(str, version))


def table(options):
    lines = ["| torchrun's option | variable | under ddprun |", "|---|---|---|"]
    for row in ROWS:
        spellings, variable = options.get(row.option, ([row.option], row.variable))
        dashed = sorted({name.replace("_", "-") if name.startswith("--") else name for name in spellings}, key=len)
        since = f" (since {version_text(row.since)})" if row.since else ""
        lines.append("| " + ", ".join(f"`{name}`" for name in dashed) + f"{since} | {variable} | {row.answer} |")
    return "\n".join(lines) + "\n"


def in_readme(text):
    before, _, rest = README.read_text().partition(BEGIN + "\n")
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + text + END + after


def main():
    arguments = sys.argv[1:]
    ddprun = os.path.abspath(arguments[0])
    only = arguments[arguments.index("--only") + 1] if "--only" in arguments else None
    options = parser_options()
    problems = []
    if missing := options.keys() ^ {row.option for row in ROWS if row.since <= VERSION}:
        problems.append(f"torchrun's options and the rows differ by {missing}")
    print(f"beside torchrun of PyTorch {torch.__version__}", *problems, sep="\n", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun_options_"))
    try:
        workplace = Workplace(ddprun, folder)
        for row in ROWS:
            if only not in (None, row.option):
                continue
            began = time.monotonic()
            if row.since > VERSION:
                print(f"--   {row.option}: torchrun has it since {version_text(row.since)}")
                continue
            found = list(refused_spellings(ddprun, row, options[row.option][0]))
            cases = chosen([case for case in row.cases if case.since <= VERSION < case.before])
            for case in cases:
                found += [f"{' '.join(case.words)} {case.variables or ''}: {text}" for text in problems_of(case, workplace)]
            print(f"{'ok' if not found else 'DIFF':4} {row.option} ({len(cases)} command lines, "
                  f"{time.monotonic() - began:.1f} s)", flush=True)
            for text in found:
                print("    ", text, flush=True)
            problems += found
    finally:
        shutil.rmtree(folder)
    if problems:
        return 1
    if "--update-readme" in arguments:
        README.write_text(in_readme(table(options)))
    elif README.read_text() != in_readme(table(options)):
        print(f"launcher/README.md does not hold this table: run {pathlib.Path(__file__).name} {arguments[0]} --update-readme")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
