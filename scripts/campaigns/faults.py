"""What a campaign does to a job, and when: drawn from a seed, so that the same seed gives the same faults in the same
order. Knows nothing of processes."""

import dataclasses
import random

# kind: (whom it strikes, how, how often it is drawn in relation to others)
KINDS = {
    "worker-kill": ("worker", "KILL", 4),
    "worker-segv": ("worker", "SEGV", 2),
    "worker-abrt": ("worker", "ABRT", 1),
    "worker-term": ("worker", "TERM", 1),
    "worker-stop": ("worker", "STOP", 2),
    "workers-kill": ("workers", "KILL", 3),  # all of a node at once
    "worker-oom": ("worker", "oom", 2),
    "standby-kill": ("standby", "KILL", 2),
    "zygote-kill": ("zygote", "KILL", 1),
    "keeper-kill": ("keeper", "KILL", 1),
    "keeper-stop": ("keeper", "STOP", 1),
    "agent-kill": ("agent", "KILL", 1),
    "agent-segv": ("agent", "SEGV", 1),
    "agent-abrt": ("agent", "ABRT", 1),
    "agent-term": ("agent", "TERM", 1),
    "agent-stop": ("agent", "STOP", 1),
    "leader-kill": ("leader", "KILL", 1),
    "leader-segv": ("leader", "SEGV", 1),
    "leader-abrt": ("leader", "ABRT", 1),
    "leader-term": ("leader", "TERM", 1),
    "leader-stop": ("leader", "STOP", 1),
    "disk-full": ("disk", "full", 1),
    "disk-slow": ("disk", "slow", 1),  # what is written waits until it is over
    "network-cut": ("network", "cut", 1),
    "clock-step": ("clock", "step", 1),  # of a node's wall clock
}
OF_SEVERAL_NODES = {kind for kind, (target, _, _) in KINDS.items() if target in ("leader", "network")}
OF_A_PROCESS = [kind for kind, (target, action, _) in KINDS.items()
                if target in ("worker", "keeper", "agent", "leader") and action != "oom"]
# Of an agent, those that it ends with while others can go on, or the same command line can: agent/README.md.
CODES_OF_RESTARTS = {110, 111, 112, 128 + 15}


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    after_s: float  # since the one before
    lasts_s: float  # of what is undone again: a stop, a cut, a full or slow disk
    pick: int  # which of several victims

    @property
    def target(self):
        return KINDS[self.kind][0]

    @property
    def action(self):
        return KINDS[self.kind][1]

    @property
    def clock_step_s(self):
        """To either side, from seconds to an hour."""
        size = 10 ** (self.pick % 1000 / 1000 * 3.556)
        return size if self.pick & 1 else -size


def draw(seed, kinds, mean_s):
    """Faults without end."""
    dice = random.Random(seed)
    weights = [KINDS[kind][2] for kind in kinds]
    while True:
        [kind] = dice.choices(kinds, weights)
        yield Fault(kind, dice.expovariate(1 / mean_s), dice.uniform(0.2, 3.0), dice.randrange(1 << 30))
