"""Jobs on several nodes, each of them an agent on this machine: how long until all know what has become of one."""

import contextlib
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

from benchmarks.programs import (BUILD, DDPCTL, DDPRUN, TORCHRUN, WORKER, end_left_workers, environment, memory_kib,
                                 still_running)
from benchmarks.table import Row

LAUNCHERS = {"ddprun": [DDPRUN], "torchrun": [TORCHRUN, "--no-python"]}
WORKERS = 2  # of each agent


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # the workers' clock


def free_port():
    """One that no outgoing connection takes while torchrun, which needs seconds for that, has yet to listen."""
    for port in random.sample(range(20_000, 29_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    sys.exit("bench: no port between 20000 and 29000 is free")


def newest_stamps(folder):
    """When each rank's newest process ran its first instruction, in ns, and its pid."""
    newest = {}
    for path in folder.iterdir():
        round_and_rank = path.name.split(".")
        if len(round_and_rank) == 2:  # one that is being written has another word to its name
            rank = int(round_and_rank[1])
            newest[rank] = max(newest.get(rank, (0, 0)), tuple(map(int, path.read_text().split())))
    return newest


class Job:
    """The agents of a job, the first of which leads; their workers leave stamps in a folder. Use started_job."""

    def __init__(self, folder):
        self.folder = folder
        self.stamps = folder / "stamps"
        self.stamps.mkdir()
        self.agents = []
        self.pids = set()

    def start_agent(self, command):
        with (self.folder / f"agent{len(self.agents)}").open("wb") as output:
            self.agents.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                                env=environment()))

    def await_round(self, world, since):
        """The stamps of a group of this size, all of whose ranks were started after `since`."""
        deadline = time.monotonic() + 60
        while True:
            newest = newest_stamps(self.stamps)
            self.pids |= {pid for _, pid in newest.values()}
            group = [newest.get(rank, (0, 0)) for rank in range(world)]
            if all(at > since for at, _ in group):
                return group
            if time.monotonic() > deadline:
                self.fail("no new round")
            time.sleep(0.001)

    def await_new_round(self, agents, since):
        """From `since` to the first instruction of the last rank of the group that so many agents form, in ms."""
        return (max(at for at, _ in self.await_round(agents * WORKERS, since)) - since) / 1e6

    def await_end(self, agents):
        """When the last of these agents has ended, in ns."""
        for agent in agents:
            descriptor = os.pidfd_open(agent.pid)
            try:
                if not select.select([descriptor], [], [], 60)[0]:
                    self.fail("an agent does not end")
            finally:
                os.close(descriptor)
        return now_ns()

    def running_workers(self):
        return still_running(self.pids, self.folder)

    def fail(self, what):
        for number, agent in enumerate(self.agents):
            output = (self.folder / f"agent{number}").read_text(errors="replace")
            print(f"bench: {' '.join(agent.args)}\n{output[-2000:]}", file=sys.stderr)
        sys.exit(f"bench: {what}")

    def end(self):
        for agent in self.agents:
            agent.send_signal(signal.SIGCONT)
            agent.terminate()
        for agent in self.agents:
            try:
                agent.wait(5)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        end_left_workers(self.pids, self.folder)


@contextlib.contextmanager
def started_job(launcher, agents, nnodes, *options, work=("wait",)):
    """A job whose first round runs. However the `with` is left, none of its processes is."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(pathlib.Path(name))
        program = [WORKER, "stamp", str(job.stamps), *(word.replace("{folder}", name) for word in work)]
        endpoint = f"127.0.0.1:{free_port()}"
        try:
            for number in range(agents):
                # Here the endpoint's address is everybody's, so that the first to come would lead.
                job.start_agent([*LAUNCHERS[launcher], f"--nnodes={nnodes}", f"--nproc-per-node={WORKERS}",
                                 "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=bench",
                                 f"--rdzv-conf=is_host={int(number == 0)}", *options, *program])
            job.await_round(agents * WORKERS, since=0)
            time.sleep(0.02)  # the agents are idle again, as they are in the middle of a training
            yield job
        finally:
            job.end()


def worker_deaths(launcher, kills):
    with started_job(launcher, 2, "2", f"--max-restarts={kills}") as job:
        for number in range(kills):
            group = job.await_round(2 * WORKERS, since=0)
            time.sleep(0.02)
            _, victim = group[number % len(group)]
            killed_at = now_ns()
            os.kill(victim, signal.SIGKILL)
            yield job.await_new_round(2, killed_at)


def bench_worker_death(quick):
    row = Row("two agents: SIGKILL of a worker to all ranks of the new round", "ms", digits=2)
    for _ in range(1 if quick else 2):
        for sample in worker_deaths("ddprun", kills=4 if quick else 12):
            row.add("ddprun", sample)
        for sample in worker_deaths("torchrun", kills=1 if quick else 4):
            row.add("torchrun", sample)
    row.bar("median ≤ 40 ms", row.median("ddprun"), row.median("ddprun") <= 40)
    ratio = row.ratio("torchrun", "ddprun")
    row.bar("≥ 25 × faster than torchrun", ratio, ratio >= 25)
    yield row


def bench_agent_death(quick):
    """torchrun's agents do not notice when one of them dies."""
    row = Row("three agents: SIGKILL of one to the new round of the others", "ms")
    for _ in range(3 if quick else 20):
        with started_job("ddprun", 3, "2:3") as job:
            killed_at = now_ns()
            job.agents[2].kill()
            row.add("ddprun", job.await_new_round(2, killed_at))
    row.bar("median ≤ 1 s", row.median("ddprun") / 1e3, row.median("ddprun") <= 1e3)
    yield row


def bench_silence(quick):
    row = Row("three agents: SIGSTOP of one to the new round of the others", "s", digits=2)
    with contextlib.ExitStack() as jobs:
        stopped = []
        for _ in range(1 if quick else 4):  # at the same time: most of it is waiting
            job = jobs.enter_context(started_job("ddprun", 3, "2:3"))
            stopped.append((job, now_ns()))
            job.agents[2].send_signal(signal.SIGSTOP)
        for job, stopped_at in stopped:
            row.add("ddprun", job.await_new_round(2, stopped_at) / 1e3)
    worst = max(row.samples["ddprun"])
    row.bar("≤ 10 s", worst, worst <= 10)
    yield row


def leader_death(launcher, agents):
    """How long until the other agents have ended, in ms, and how many workers run then."""
    with started_job(launcher, agents, str(agents)) as job:
        killed_at = now_ns()
        job.agents[0].kill()
        ended_at = job.await_end(job.agents[1:])
        return (ended_at - killed_at) / 1e6, len(job.running_workers())


def bench_leader_death(quick):
    row = Row("three agents: SIGKILL of the leader to the others' exit", "ms", digits=2)
    running = 0
    for _ in range(1 if quick else 3):
        for _ in range(3 if quick else 7):
            sample, workers = leader_death("ddprun", 3)
            row.add("ddprun", sample)
            running += workers
        if not quick:
            row.add("torchrun", leader_death("torchrun", 3)[0])
    worst = max(row.samples["ddprun"])
    row.bar("slowest ≤ 1 s", worst / 1e3, worst <= 1e3)
    row.bar("workers left: 0", running, running == 0)
    yield row


def leader_restart(delay_ms):
    """From the SIGKILL of a leader that is started again to the new round, or to the end of the other agent, in ms."""
    with started_job("ddprun", 2, "2") as job:
        leader, other = job.agents
        killed_at = now_ns()
        leader.kill()
        leader.wait()
        time.sleep(delay_ms / 1e3)
        job.start_agent(leader.args)
        while other.poll() is None:
            stamps = newest_stamps(job.stamps)
            if all(stamps.get(rank, (0, 0))[0] > killed_at for rank in range(2 * WORKERS)):
                return job.await_new_round(2, killed_at)
            if now_ns() - killed_at > 60e9:
                job.fail("a job neither goes on nor ends")
            time.sleep(0.001)
        return (now_ns() - killed_at) / 1e6


def bench_leader_restart(quick):
    """torchrun's job does not go on: its other agents end with an error within 5 s."""
    row = Row("two agents: SIGKILL of the leader, started again after 0 to 150 ms, to the new round", "ms")
    for _ in range(1 if quick else 5):
        for delay_ms in (0, 50, 150):
            row.add("ddprun", leader_restart(delay_ms))
    worst = max(row.samples["ddprun"])
    row.bar("slowest ≤ 2 s", worst / 1e3, worst <= 2e3)
    yield row


def finish(launcher):
    """From the moment when the last worker is about to end to the end of the last agent, in ms."""
    # A stamp tells when a process began: `become` begins another one, that stamps and ends.
    with started_job(launcher, 2, "2", work=("until", "{folder}/go", "become", "stamp", "{folder}/ended")) as job:
        (job.folder / "ended").mkdir()
        (job.folder / "go").touch()
        ended_at = job.await_end(job.agents)
        if any(agent.wait() != 0 for agent in job.agents):
            job.fail("a job did not end well")
        return (ended_at - max(at for at, _ in newest_stamps(job.folder / "ended").values())) / 1e6


def bench_finish(quick):
    row = Row("two agents: all workers finished to the last agent's exit", "ms", digits=2)
    for _ in range(1 if quick else 3):
        for _ in range(3 if quick else 7):
            row.add("ddprun", finish("ddprun"))
        row.add("torchrun", finish("torchrun"))
    row.bar("median ≤ 50 ms", row.median("ddprun"), row.median("ddprun") <= 50)
    yield row


def meeting(agents):
    """How long round_load's agents take to form a round, in s, and what each of them costs the leader, in KB."""
    with contextlib.ExitStack() as started:
        def start(*command):
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = started.enter_context(subprocess.Popen(command, text=True, **pipes))
            started.callback(process.kill)  # before Popen's own exit waits for it
            return process

        leader = start(DDPCTL, "leader", "--listen=127.0.0.1:0", f"--nnodes={agents}")
        address = leader.stdout.readline().strip()
        before = memory_kib(leader.pid, "VmRSS")
        load = start(str(BUILD / "bench/round_load"), address, str(agents))
        joined = load.stdout.readline().split()
        if not joined:
            sys.exit(f"bench: {agents} agents did not form a round (ulimit -Hn: {agents} and some files are open at a "
                     f"time)\n{load.stderr.read()}")
        memory = memory_kib(leader.pid, "VmHWM") - before
        for process in (load, leader):
            _, told = process.communicate("\n" if process is load else None)
            if process.returncode != 0:
                sys.exit(f"bench: {process.args[0]} ended with {process.returncode}:\n{told}")
        return float(joined[1]), memory * 1.024 / agents


def bench_meeting(quick):
    """Simulated agents that speak the round protocol, in one process; a leader in another."""
    limits = {1_000: 0.5, 10_000: 5}
    times = {agents: Row(f"rendezvous of {agents:,} agents", "s", digits=3) for agents in limits}
    memory = {agents: Row(f"leader's memory for each of {agents:,} agents", "KB") for agents in limits}
    for _ in range(1 if quick else 5):
        for agents in limits:
            seconds, kilobytes = meeting(agents)
            times[agents].add("ddprun", seconds)
            memory[agents].add("ddprun", kilobytes)
    for agents, limit in limits.items():
        row = times[agents]
        row.bar(f"≤ {limit} s", row.median("ddprun"), row.median("ddprun") <= limit)
        worst = max(memory[agents].samples["ddprun"])
        memory[agents].bar("≤ 20 KB", worst, worst <= 20)
    growth = times[10_000].median("ddprun") / times[1_000].median("ddprun") / 10
    times[10_000].bar("each ≤ 1.5 × as long as one of 1,000", growth, growth <= 1.5)
    yield from times.values()
    yield from memory.values()


# A munged of its own, at the place where libmunge looks, which only its own mount namespace shows.
MUNGED = """
mount -t tmpfs tmpfs /run && mkdir -m 755 /run/munge && cd /run/munge || exit
head -c 128 /dev/urandom >key && chmod 600 key
exec munged --foreground --force --key-file=$PWD/key --pid-file=$PWD/pid --seed-file=$PWD/seed --log-file=$PWD/log
"""


@contextlib.contextmanager
def munge_namespace():
    """The words before a command that can use munge; None where there is no munged, or no right to mount."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", MUNGED], stdin=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, env={"PATH": path}) as munged:
        try:
            words = ["nsenter", f"--mount=/proc/{munged.pid}/ns/mnt", "--wd=/", "--"]
            deadline = time.monotonic() + 10
            while (found := subprocess.run([*words, "test", "-S", "/run/munge/munge.socket.2"], check=False,
                                           stderr=subprocess.DEVNULL).returncode) != 0:
                if munged.poll() is not None or time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            yield words if found == 0 else None
        finally:
            munged.terminate()


def joining(words, options, variables):
    """From the start of a job's second agent to the end of both, whose workers end at once, in ms."""
    endpoint = f"127.0.0.1:{free_port()}"

    def start(leads):
        return subprocess.Popen([*words, DDPRUN, "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                                 f"--rdzv-endpoint={endpoint}", f"--rdzv-conf=is_host={int(leads)}", "--rdzv-id=bench",
                                 *options, "/bin/true"],
                                stdin=subprocess.DEVNULL, env={**environment(), **variables})

    leader = start(True)
    time.sleep(0.05)  # it listens: an agent that comes earlier tries again after 20 ms
    began = now_ns()
    agents = [leader, start(False)]
    if codes := [code for code in [agent.wait(60) for agent in agents] if code != 0]:
        sys.exit(f"bench: two agents with {options} {variables} ended with {codes}")
    return (now_ns() - began) / 1e6


def bench_proof(quick):
    """What it costs that nodes prove that they belong to the job: in turns, with and without."""
    with tempfile.TemporaryDirectory() as folder, munge_namespace() as munge:
        token = str(pathlib.Path(folder) / "token")
        subprocess.run([DDPCTL, "token", token], check=True)
        ways = {"token": ([f"--token-file={token}"], {}), "none": ([], {})}
        if munge:
            ways["munge"] = ([], {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"})
        times = {way: [] for way in ways}
        for _ in range(10 if quick else 200):
            for way, (options, variables) in random.sample(list(ways.items()), len(ways)):
                times[way].append(joining(munge or [], options, variables))
    for way in ways:
        if way == "none":
            continue
        row = Row(f"job of two agents that prove themselves by {way}: what that costs", "ms", digits=2)
        for sample, without in zip(sorted(times[way]), sorted(times["none"])):
            row.add("ddprun", sample - without)  # of their distributions: the median is the medians' difference
        row.bar("≤ 1 ms", row.median("ddprun"), row.median("ddprun") <= 1)
        yield row


def bench_nodes(quick):
    for bench in (bench_worker_death, bench_agent_death, bench_silence, bench_leader_death,
                  bench_leader_restart, bench_finish, bench_proof, bench_meeting):
        yield from bench(quick)
