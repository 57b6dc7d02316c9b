"""One run of the program under ddprun, on one node or several, which is disturbed as planned. An agent that ends with
an error is started again with the same command line, as a service manager does."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import uuid

from campaigns.processes import MARK, agent_in, environment_of, is_alive, marked, state, victims

LOOK_S = 0.02
RESTART_S = 0.2  # until an agent is started again


class Stuck(Exception):
    """The job has not got on, or has left something behind."""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Node:
    """The agent of one node; `process` may be what runs it in a namespace."""

    def __init__(self, number, command, environment, log):
        self.number, self.command, self.environment, self.log = number, command, environment, log
        self.starts = 0
        self.process = None
        self.start()

    def start(self):
        self.starts += 1
        self.ended_at = None
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.environment, start_new_session=True)

    def agent(self):
        return agent_in(self.process.pid) if self.process.poll() is None else None


class Run:
    """What a job did: `events` of all its agents, in their order."""

    def __init__(self, setup, folder, faults=(), limit_s=600, say=print):
        self.setup, self.folder, self.say = setup, pathlib.Path(folder), say
        self.faults, self.limit_s = iter(faults), limit_s
        self.mark = uuid.uuid4().hex
        self.struck = []  # (fault, what it did)
        self.undo = []  # (when, what, function)
        self.network = setup.make_network()
        self.environment = {**os.environ, MARK: self.mark, "DDPRUN_CONTROL_DIR": str(self.folder / "control"),
                            "TMPDIR": str(self.folder / "tmp"), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        for each in ("control", "tmp", "result"):
            (self.folder / each).mkdir(parents=True, mode=0o700)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for _, _, function in self.undo:
            function()
        if self.network:
            self.network.close()

    def run(self, count):
        """Until the program has ended well on every node. At most `count` faults are made."""
        self.setup.prepare_disk(self.folder / "result")
        try:
            return self._run(count)
        finally:
            self._undo(everything=True)

    def _run(self, count):
        port = free_port()
        nodes = [Node(number, self.setup.command(number, self.folder, port, self.network), self.environment,
                      self.folder / f"node{number}.log") for number in range(self.setup.nodes)]
        begun = time.monotonic()
        fault = next(self.faults, None) if count else None
        due = begun + fault.after_s if fault else None
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            if now - begun > self.limit_s:
                raise Stuck(f"it has not ended after {self.limit_s} s")
            self._undo()
            for node in nodes:
                self._tend(node, now, nodes)
            if all(node.process.poll() == 0 for node in nodes):
                break
            if fault and now >= due and self._strike(fault, nodes):
                count -= 1
                fault = next(self.faults, None) if count else None
                due = time.monotonic() + fault.after_s if fault else None
        self._undo(everything=True)
        self._check_nothing_is_left()
        self.wall_s = time.monotonic() - begun
        self.agent_starts = sum(node.starts for node in nodes)

    def _tend(self, node, now, nodes):
        code = node.process.poll()
        if code is None or code == 0:
            return
        if not self.struck:
            raise Stuck(f"without any fault the agent of node {node.number} ended with {code}: see {node.log}")
        if node.ended_at is None:
            node.ended_at = now
        elif now - node.ended_at > RESTART_S:
            if self.setup.nodes > 1 and any(other.process.poll() == 0 for other in nodes):
                raise Stuck(f"the job is done, and node {node.number} ended with {code}")
            node.start()

    def _strike(self, fault, nodes):
        """False: nobody of that kind is there; it comes later."""
        node = nodes[0] if fault.target == "leader" else nodes[fault.pick % len(nodes)]
        agent = node.agent()
        if agent is None:
            return False
        until = time.monotonic() + fault.lasts_s
        if fault.target == "network":
            self.network.cut(node.number)
            self.undo.append((until, "the cable", lambda: self.network.join(node.number)))
            return self._struck(fault, f"node {node.number} cut off for {fault.lasts_s:.1f} s")
        if fault.target == "disk":
            self.setup.fill_disk(self.folder / "result")
            self.undo.append((until, "the disk", lambda: self.setup.empty_disk(self.folder / "result")))
            return self._struck(fault, f"disk full for {fault.lasts_s:.1f} s")
        found = victims(self.setup.ddpctl, agent, self.environment)
        target = {"workers": "worker", "leader": "agent"}.get(fault.target, fault.target)
        pids = sorted(found[target])
        if not pids:
            return False
        if fault.target != "workers":
            pids = [pids[fault.pick // 7 % len(pids)]]
        if fault.action == "oom":
            if not self.setup.kill_for_memory(pids[0]):
                return False
            return self._struck(fault, f"pid {pids[0]} of node {node.number} killed for its memory")
        number = getattr(signal, f"SIG{fault.action}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            self.undo.append((until, "SIGCONT", lambda: self._continue(pids[0])))
        return self._struck(fault, f"SIG{fault.action} to {fault.target} {', '.join(map(str, pids))} of node {node.number}")

    def _continue(self, pid):
        if state(pid) == ["T"] and f"{MARK}={self.mark}" in environment_of(pid):
            os.kill(pid, signal.SIGCONT)

    def _struck(self, fault, sentence):
        self.struck.append((fault, sentence))
        self.say(f"  {len(self.struck)}. {fault.kind}: {sentence}")
        return True

    def _undo(self, everything=False):
        now = time.monotonic()
        due = [each for each in self.undo if everything or each[0] <= now]
        self.undo = [each for each in self.undo if each not in due]
        for _, _, function in due:
            function()

    def _check_nothing_is_left(self):
        deadline = time.monotonic() + 5
        while left := [pid for pid in marked(self.mark) if is_alive(pid)]:
            if time.monotonic() > deadline:
                raise Stuck(f"processes are left behind: {left}")
            time.sleep(LOOK_S)

    def events(self):
        for file in sorted(self.folder.glob("events*")):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):  # an agent that was killed leaves half a line
                    yield json.loads(line)
