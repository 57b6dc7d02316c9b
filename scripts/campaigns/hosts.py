"""What this machine permits a campaign to do, and the world of one run: its networks, clocks, disk and control groups, and
the command line of each node."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time

from campaigns import clock, disk, memory, network
from campaigns.faults import KINDS, OF_SEVERAL_NODES
from campaigns.job import LEADER

# Two seconds of silence, shorter than many a SIGSTOP lasts, so that agents are found silent.
CONF = "keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=1"
BACKENDS = ("c10d", "static", "leader", "etcd")


class Site:
    def __init__(self, ddprun, clock_library):
        self.ddprun, self.ddpctl = ddprun, str(pathlib.Path(ddprun).with_name("ddpctl"))
        self.clock_library = clock_library
        self._worlds = 0

    def obstacle_to(self, kind, cell):
        """Why this kind of fault cannot be had; None if it can."""
        target, action, _ = KINDS[kind]
        if kind in OF_SEVERAL_NODES and cell.nodes == 1:
            return "there is one node"
        if target == "network":
            return network.obstacle() or ("agents meet at 127.0.0.1" if cell.rdzv == "etcd" else None)
        if action == "full":
            return disk.obstacle_to_full()
        if action == "slow":
            return disk.obstacle_to_slow()
        if action == "oom":
            return memory.obstacle()
        if target == "clock":
            return clock.obstacle(self.clock_library)
        return None

    def obstacle_to_backend(self, rdzv):
        return "there is no etcd" if rdzv == "etcd" and not shutil.which("etcd") else None

    def make_world(self, cell, folder, environment):
        self._worlds += 1
        return World(self, cell, folder, environment, f"chaos{os.getpid()}-{self._worlds}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class World:
    """Of one run. close() when its processes have ended."""

    def __init__(self, site, cell, folder, environment, name):
        self._site, self._cell, self._folder, self._environment = site, cell, folder, environment
        self._closing = contextlib.ExitStack()
        actions = {KINDS[kind][1] for kind in cell.kinds}
        self.network = self.disk = None
        self.clocks, self.groups = {}, {}
        try:
            if cell.nodes > 1 and cell.rdzv != "etcd" and not network.obstacle():
                self.network = network.Network(name, cell.nodes)
                self._closing.callback(self.network.close)
            if "full" in actions or "slow" in actions:
                self.disk = disk.Disk(folder / "result", can_be_slow="slow" in actions)
                self._closing.callback(self.disk.close)
            for node in range(cell.nodes):
                if "step" in actions:
                    self.clocks[node] = clock.Clock(site.clock_library, folder / f"clock-{node}")
                if "oom" in actions:
                    self.groups[node] = memory.MemoryGroup(f"ddprun-{name}-{node}")
                    self._closing.callback(self.groups[node].close)
            self._port = free_port()
            if cell.rdzv == "etcd":
                self._start_etcd()
        except BaseException:
            self._closing.close()
            raise

    def close(self):
        self._closing.close()

    def environment(self, number):
        environment = {name: self._filled(value) for name, value in self._environment.items()}
        if number in self.clocks:
            environment |= self.clocks[number].environment(environment)
        environment["GLOO_SOCKET_IFNAME"] = "eth0" if self.network else "lo"
        return environment

    def enter(self, number):
        """What the node's process calls before it becomes ddprun."""
        return self.groups[number].enter if number in self.groups else None

    def command(self, number):
        if number == LEADER:
            command = [self._site.ddpctl, "leader", f"--listen={self._host()}:{self._port}", f"--nnodes={self._nnodes()}",
                       "--rdzv-id=chaos", f"--rdzv-conf={CONF}", "--max-restarts=1000000"]
            return self.network.command(0, command) if self.network else command
        command = [self._site.ddprun, f"--events={self._folder}/events-{number}", *self._options(number),
                   *map(self._filled, self._cell.command)]
        return self.network.command(number, command) if self.network else command

    def _filled(self, word):
        return word.replace("{folder}", str(self._folder / "result")).replace("{samples}", str(self._folder / "samples" / "of"))

    def _options(self, number):
        if not any(word.startswith(("--max-restarts", "--max_restarts")) for word in self._cell.command):
            yield "--max-restarts=1000000"
        if self._cell.nodes == 1:
            return
        yield f"--nnodes={self._nnodes()}"
        if self.network:
            yield f"--local-addr={self.network.address(number)}"
        if self._cell.rdzv == "static":
            yield from (f"--node-rank={number}", f"--master-addr={self._host()}", f"--master-port={self._port}",
                        f"--rdzv-conf={CONF}")
            return
        yield "--rdzv-id=chaos"
        if self._cell.rdzv == "etcd":
            yield from ("--rdzv-backend=etcd", f"--rdzv-endpoint=127.0.0.1:{self._port}", f"--rdzv-conf={CONF},lease_time=2")
            return
        # On one machine every node has the endpoint's address, so the first one to start would lead.
        leads = self._cell.rdzv == "c10d" and number == 0
        yield from ("--rdzv-backend=c10d", f"--rdzv-endpoint={self._host()}:{self._port}",
                    f"--rdzv-conf={CONF},is_host={int(leads)}")

    def _nnodes(self):
        return self._cell.nnodes or str(self._cell.nodes)

    def _host(self):
        return self.network.address(0) if self.network else "127.0.0.1"

    def _start_etcd(self):
        url, peer = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{free_port()}"
        server = subprocess.Popen(
            ["etcd", "--name=m0", f"--data-dir={self._folder}/etcd", f"--listen-client-urls={url}",
             f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
             f"--initial-cluster=m0={peer}", "--log-level=error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._closing.callback(server.wait)
        self._closing.callback(server.terminate)
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                return
            if server.poll() is not None or time.monotonic() > deadline:
                raise OSError("etcd does not start")
            time.sleep(0.02)
