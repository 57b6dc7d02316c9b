"""Nodes in network namespaces of their own, behind one bridge that lies in another one: nothing of the machine's own
network is changed. Needs root and `ip`; a namespace is gone when it is deleted and its last process has ended."""

import shutil
import subprocess


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def obstacle():
    """Why there can be none here; None if there can."""
    if not shutil.which("ip"):
        return "there is no program `ip`"
    probe = "ddprun-chaos-probe"
    if (made := ip("netns", "add", probe, check=False)).returncode != 0:
        return f"`ip netns add` fails: {made.stderr.strip()}"
    ip("netns", "delete", probe, check=False)
    return None


class Network:
    def __init__(self, name, nodes):
        self.names = [f"{name}-{node}" for node in range(nodes)]
        self.switch = f"{name}-s"
        try:
            for each in (self.switch, *self.names):
                ip("netns", "add", each)
                ip("-n", each, "link", "set", "lo", "up")
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
            for node, each in enumerate(self.names):
                ip("-n", self.switch, "link", "add", f"node{node}", "type", "veth", "peer", "name", "eth0", "netns", each)
                ip("-n", self.switch, "link", "set", f"node{node}", "master", "bridge", "up")
                ip("-n", each, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
                ip("-n", each, "link", "set", "eth0", "up")
        except subprocess.CalledProcessError:
            self.close()
            raise

    @staticmethod
    def address(node):
        return f"10.78.0.{node + 1}"

    def command(self, node, command):
        return ["ip", "netns", "exec", self.names[node], *command]

    def cut(self, node):
        ip("-n", self.switch, "link", "set", f"node{node}", "down")

    def join(self, node):
        ip("-n", self.switch, "link", "set", f"node{node}", "up")

    def close(self):
        for each in (self.switch, *self.names):
            ip("netns", "delete", each, check=False)
