"""One run of the program under ddprun, on one node or several, which is disturbed as planned. An agent that ends with
an error is started again with the same command line, as a service manager does."""

import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import time
import uuid

from campaigns import growth, samples
from campaigns.faults import CODES_OF_RESTARTS
from campaigns.processes import MARK, agent_in, ask, done, environment_of, is_alive, keeper_of, marked, pids_of, state, text_of

LOOK_S = 0.02
MEASURE_S = 0.25
RESTARTS_S = [0.0, 0.05, 0.15, 0.3, 1.0]  # until an agent is started again
AGAIN_S, TRIES_MAX = 0.1, 30  # a fault that finds no victim so often is left out
# Of the training: who is struck later may find, when it comes back, that all others have ended.
ALMOST_DONE = 0.9
LATE_S = 5.0
LAST_BYTES = 4096  # of an agent's log: its last report
NEVER = "this must never happen"  # tests/support/integer_training.cpp
OWN_FILES = ("torchelastic_", "ddprun", ".ddprun")  # of ddprun, in $TMPDIR
LEADER = "leader"  # the number of the node that is `ddpctl leader`


class Stuck(Exception):
    """The job has not got on, or has left something behind."""


class Node:
    """The agent of one node, or `ddpctl leader`; `process` may be what runs it in a namespace."""

    def __init__(self, number, start, seed):
        self.number, self._start = number, start
        self._delays = random.Random(f"{seed} {number}")
        self.starts, self.struck_at, self.start_at = 0, None, None
        self.is_late = False
        self.pids = set()
        self.start()

    def start(self):
        self.starts, self.start_at = self.starts + 1, None
        self.process = self._start()
        self.pids.add(self.process.pid)

    def start_later(self):
        self.start_at = time.monotonic() + self._delays.choice(RESTARTS_S)

    def agent(self):
        return agent_in(self.process.pid) if self.process.poll() is None else None

    def has_ended_well(self):
        return self.process.poll() == 0


class Run:
    """What a job did: `events` of all its agents, in their order. Used in a `with`."""

    def __init__(self, site, cell, folder, seed=0, limit_s=600, say=print):
        self.site, self.cell, self.folder, self.say = site, cell, pathlib.Path(folder), say
        self.seed, self.limit_s = seed, limit_s
        self.mark = uuid.uuid4().hex
        self.struck = []  # (fault, what it did)
        self.left_out = []  # faults that found no victim
        self.undo = []  # (when, what, function)
        self.nodes = []
        self.sizes = collections.defaultdict(list)  # by what it is and its pid
        self.crashed = set()  # pids of agents, whose sockets stay
        self.is_almost_done = False
        self.keeper_was_struck = False
        self.last_strike, self.time_is_over = None, False
        self.leader_struck_at = 0
        self.agent_starts = 0
        for each in ("control", "tmp", "result", "samples"):
            (self.folder / each).mkdir(parents=True, mode=0o700)
        self.environment = {**os.environ, MARK: self.mark, "DDPRUN_CONTROL_DIR": str(self.folder / "control"),
                            "TMPDIR": str(self.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1",
                            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **dict(cell.environment)}
        self.world = site.make_world(cell, self.folder, self.environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _, _, function in self.undo:
            function()
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for node in self.nodes:
            node.process.wait()
        self._await_the_end()
        self.world.close()

    def run(self, faults, count, for_s=None):
        """Until the program has ended well on every node. At most `count` of the faults are made, none later than `for_s`."""
        numbers = ([LEADER] if self.cell.rdzv == "leader" else []) + list(range(self.cell.nodes))
        self.begun = time.monotonic()
        self.nodes = [Node(number, lambda number=number: self._start(number), self.seed) for number in numbers]
        fault = next(faults) if count else None
        due, tries, measured_at = None, 0, 0
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            if now - self.begun > self.limit_s:
                raise Stuck(f"it has not ended after {self.limit_s} s")
            self._undo()
            for node in self.nodes:
                self._tend(node, now)
            if all(node.has_ended_well() or node.is_late for node in self.nodes):
                break
            if now - measured_at > MEASURE_S:
                self._measure()
                measured_at = now
            if fault is None:
                continue
            due = due or now + fault.after_s
            if now < due:
                continue
            if for_s is not None and now - self.begun > for_s:
                fault, self.time_is_over = None, True
                continue
            has_struck = self._strike(fault, tries)
            if has_struck:
                count -= 1
                self.last_strike = time.monotonic()
            elif has_struck is not None:
                tries += 1
                due = now + AGAIN_S
                if tries < TRIES_MAX:
                    continue
                self.left_out.append(fault)
            fault, due, tries = next(faults) if count and has_struck is not None else None, None, 0
        self.wall_s = time.monotonic() - self.begun
        self.tail_s = time.monotonic() - (self.last_strike or self.begun)
        self.agent_starts = sum(node.starts for node in self.nodes)
        self._undo(everything=True)
        self._check_nothing_is_left()

    def what_is_wrong(self):
        """Of what it has left, and of how its processes grew; None if nothing is."""
        for (who, _), sizes in self.sizes.items():
            if why := growth.what_is_wrong(who, sizes):
                return why
        if any(NEVER in text_of(log) for log in self.folder.glob("node-*.log")):
            return f"the program found an impossible state: {NEVER}"
        if self.cell.samples and (why := samples.what_is_wrong(self.folder / "samples", *self.cell.samples)):
            return why
        return None

    def events(self):
        for file in sorted(self.folder.glob("events*")):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):  # an agent that was killed leaves half a line
                    yield json.loads(line)

    # ---- nodes

    def _start(self, number):
        with open(self.folder / f"node-{number}.log", "ab") as log:
            return subprocess.Popen(self.world.command(number), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env=self.world.environment(number), start_new_session=True,
                                    preexec_fn=self.world.enter(number))

    def _tend(self, node, now):
        if node.start_at is not None:
            if now >= node.start_at:
                node.start()
            return
        code = node.process.poll()
        if node.is_late or code == 0:
            return
        ended_well = [other for other in self.nodes if other.has_ended_well()]
        if code is None:
            if ended_well and now - self._end_of(ended_well) > LATE_S:
                self._is_late(node, "still runs")
            return
        if not self.struck:
            raise Stuck(f"without any fault the agent of node {node.number} ended with {code}: see node-{node.number}.log")
        if code < 0:
            self.crashed |= node.pids
        elif code not in CODES_OF_RESTARTS and not self._has_struck_a_step_twice(node):
            raise Stuck(f"node {node.number} ended with {code}")
        if ended_well:
            return self._is_late(node, f"ended with {code}")
        node.start_later()

    def _has_struck_a_step_twice(self, node):
        """The same rank was struck twice before it had committed a step: ddprun takes the step for the cause, and ends."""
        log = (self.folder / f"node-{node.number}.log").read_bytes()[-LAST_BYTES:]
        return b"has ended rank " in log

    def _end_of(self, nodes):
        """When it was first seen that one of them has ended well."""
        for node in nodes:
            node.ended_at = getattr(node, "ended_at", None) or time.monotonic()
        return min(node.ended_at for node in nodes)

    def _is_late(self, node, what):
        """The others have ended: that is right only if it was away at that moment, for a fault of its own or of the leader,
        without which agents end, and are started again."""
        ended = self._end_of([other for other in self.nodes if other.has_ended_well()])
        if ended - max(node.struck_at or 0, self.leader_struck_at) > LATE_S:
            raise Stuck(f"the job is done, and node {node.number} {what}")
        self.say(f"  node {node.number} {what}: it came back when the job was done")
        node.is_late = True
        if node.process.poll() is None:
            self.crashed |= node.pids
            self.keeper_was_struck = True
            for pid in marked(self.mark):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            node.process.wait()

    def _measure(self):
        for node in self.nodes:
            if agent := node.agent():
                for who, pid in (("the agent", agent), ("the keeper", keeper_of(agent))):
                    if pid and (size := growth.Size.of(pid)):
                        self.sizes[who, pid].append(size)

    # ---- faults

    def _strike(self, fault, tries):
        """True: done. False: nobody of that kind is there, maybe later. None: the training is almost over."""
        agents = [node for node in self.nodes if node.number != LEADER]
        node = agents[(fault.pick + tries) % len(agents)]
        if fault.target == "leader" and self.cell.rdzv != "etcd":
            node = self.nodes[0]
        if (agent := node.agent()) is None:
            return False
        pids = {"agent": [agent], "leader": [agent], "keeper": list(filter(None, [keeper_of(agent)]))}
        now = None
        if node.number != LEADER:
            now = self._ask(node, agent)
            # A process that has just taken a rank's place tells of no progress yet.
            self.is_almost_done = self.is_almost_done or bool(now) and (done(now) or 0) > ALMOST_DONE
            if self.is_almost_done:
                return None
            if fault.target == "leader" and self.cell.rdzv == "etcd" and not (now and now["leads"]):
                return False  # the next one is asked
            if now:
                pids |= pids_of(now)
                pids["workers"] = pids["worker"]
        node.struck_at = time.monotonic()
        if node.number == LEADER or (now or {}).get("leads"):
            self.leader_struck_at = node.struck_at
        until = node.struck_at + fault.lasts_s
        if fault.target == "network":
            self.world.network.cut(node.number)
            self._undo_at(until, "network", lambda: self.world.network.join(node.number))
            return self._struck(fault, f"node {node.number} cut off for {fault.lasts_s:.1f} s")
        if fault.target == "disk":
            self._undo(what="disk")  # a disk that is full and frozen could not be emptied
            self.world.disk.fill() if fault.action == "full" else self.world.disk.freeze()
            self._undo_at(until, "disk", self.world.disk.restore)
            return self._struck(fault, f"disk {fault.action} for {fault.lasts_s:.1f} s")
        if fault.target == "clock":
            self.world.clocks[node.number].step(fault.clock_step_s)
            return self._struck(fault, f"the clock of node {node.number} steps by {fault.clock_step_s:+.1f} s")
        found = sorted(pids.get(fault.target, []))
        if not found:
            return False
        if fault.target != "workers":
            found = [found[fault.pick // 7 % len(found)]]
        if fault.action == "oom":
            if not self.world.groups[node.number].kill(found[0]):
                return False
            return self._struck(fault, f"pid {found[0]} of node {node.number} killed for its memory")
        number = getattr(signal, f"SIG{fault.action}")
        self.keeper_was_struck |= fault.target == "keeper"
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            self._undo_at(until, "SIGCONT", lambda: self._continue(found[0]))
        return self._struck(fault, f"SIG{fault.action} to {fault.target} {', '.join(map(str, found))} of node {node.number}")

    def _ask(self, node, agent):
        return ask(self.site.ddpctl, agent, self.world.environment(node.number))

    def _continue(self, pid):
        # "t": the agent reports a hang, and its debugger is attached to the worker, which goes on once it is detached.
        if state(pid) in (["T"], ["t"]) and f"{MARK}={self.mark}" in environment_of(pid):
            os.kill(pid, signal.SIGCONT)

    def _struck(self, fault, sentence):
        self.struck.append((fault, sentence))
        self.say(f"  {time.monotonic() - self.begun:6.1f} s: {fault.kind}: {sentence}")
        return True

    def _undo_at(self, when, what, function):
        self.undo.append((when, what, function))

    def _undo(self, everything=False, what=None):
        now = time.monotonic()
        due = [each for each in self.undo if everything or each[0] <= now or each[1] == what]
        self.undo = [each for each in self.undo if each not in due]
        for _, _, function in due:
            function()

    # ---- what is left

    def _await_the_end(self):
        deadline = time.monotonic() + 5
        while left := [pid for pid in marked(self.mark) if is_alive(pid)]:
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_S)
        return left

    def _check_nothing_is_left(self):
        if left := self._await_the_end():
            raise Stuck(f"processes are left behind: {left}")
        # The socket of an agent that was killed stays until another job tidies up.
        sockets = [file.name for file in (self.folder / "control").iterdir() if not self._may_stay(file.name)]
        if sockets:
            raise Stuck(f"sockets are left behind: {', '.join(sorted(sockets))}")
        # If both were killed, nobody removes files.
        files = [file.name for file in (self.folder / "tmp").iterdir() if file.name.startswith(OWN_FILES)]
        if files and not (self.keeper_was_struck and self.crashed):
            raise Stuck(f"temporary files are left behind: {', '.join(sorted(files))}")

    def _may_stay(self, socket):
        pids = {int(part) for part in socket.split(".") if part.isdigit()}
        return bool(self.crashed & pids if pids else self.crashed)
