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
    if name(pid).startswith(("ddprun", "ddpctl")):
        return pid
    return next((found for child in children(pid) if (found := agent_in(child))), None)


def keeper_of(agent):
    return next((child for child in children(agent) if name(child) == "ddprun-keeper"), None)


ANSWER_S = 1.0  # an agent that was stopped gives none


def ask(ddpctl, agent, environment):
    """The agent's node, of `ddpctl status`; None if it does not answer."""
    try:
        asked = subprocess.run([ddpctl, "status", "--json", str(agent)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env=environment, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return None
    nodes = json.loads(asked.stdout)["nodes"] if asked.returncode == 0 else []
    return next((node for node in nodes if node.get("agent_pid") == agent), None)


def done(node):
    """Of the training: 0 to 1. None: the program does not say."""
    told = (worker.get("progress") or {} for worker in node["workers"] or [])
    return max((each["step"] / each["total"] for each in told if each.get("step") and each.get("total")), default=None)


def pids_of(node):
    """By what they are."""
    agent, workers = node["agent_pid"], {worker["pid"] for worker in node["workers"] or []}
    alive = [child for child in children(agent) if is_alive(child) and name(child) != "ddprun-keeper"]
    waiting = [child for child in alive if child not in workers]
    # A standby is forked by the zygote, so it has the same first environment; the zygote is older.
    zygote = [child for child in waiting if any(line.startswith("DDPRUN_ZYGOTE_FD=") for line in environment_of(child))][:1]
    return {"worker": [child for child in alive if child in workers], "zygote": zygote,
            "standby": [child for child in waiting if child not in zygote]}
