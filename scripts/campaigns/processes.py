"""The processes of a job, found in /proc: who is what, and who is left."""

import json
import os
import pathlib
import subprocess

MARK = "DDPRUN_CHAOS_MARK"  # in the environment of every process of a run


def text_of(path):
    try:
        return pathlib.Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def children(pid):
    return [int(child) for child in text_of(f"/proc/{pid}/task/{pid}/children").split()]


def name(pid):
    return text_of(f"/proc/{pid}/comm").strip()


def state(pid):
    return text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1]


def is_alive(pid):
    return state(pid) not in ([], ["Z"], ["X"])


def environment_of(pid):
    return set(text_of(f"/proc/{pid}/environ").split("\0"))


def marked(mark):
    """Those of this run that are alive."""
    wanted = f"{MARK}={mark}"
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in pids if wanted in environment_of(pid) and is_alive(pid)]


def agent_in(pid):
    """The agent, which something like `ip netns exec` may have become, or made."""
    if name(pid).startswith("ddprun"):
        return pid
    return next((found for child in children(pid) if (found := agent_in(child))), None)


def status(ddpctl, agent, environment):
    asked = subprocess.run([ddpctl, "status", "--json", str(agent)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           env=environment, timeout=20)
    return json.loads(asked.stdout) if asked.returncode == 0 else {}


def victims(ddpctl, agent, environment):
    """By what they are: lists of pids of one node."""
    found = {"agent": [agent], "keeper": [], "worker": [], "zygote": [], "standby": []}
    workers = set()
    for node in status(ddpctl, agent, environment).get("nodes", []):
        workers |= {worker["pid"] for worker in node.get("workers", []) if worker.get("pid")}
    waiting = []
    for child in children(agent):
        if not is_alive(child):
            continue
        if name(child) == "ddprun-keeper":
            found["keeper"].append(child)
        elif child in workers:
            found["worker"].append(child)
        else:
            waiting.append(child)
    # A standby is forked by the zygote, so it has the same first environment; the zygote is older.
    of_zygote = [child for child in waiting
                 if any(line.startswith("DDPRUN_ZYGOTE_FD=") for line in environment_of(child))]
    found["zygote"] = of_zygote[:1]
    found["standby"] = [child for child in waiting if child not in found["zygote"]]
    return found
