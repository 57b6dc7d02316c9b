"""What a campaign does to a job, and when: drawn from a seed, so that the same seed gives the same faults in the same
order. Knows nothing of processes."""

import dataclasses
import random

# kind: (whom it strikes, how, how often it is drawn in relation to others)
KINDS = {
    "worker-kill": ("worker", "KILL", 4),
    "worker-segv": ("worker", "SEGV", 2),
    "worker-stop": ("worker", "STOP", 2),
    "workers-kill": ("workers", "KILL", 3),  # all of a node at once
    "worker-oom": ("worker", "oom", 1),
    "standby-kill": ("standby", "KILL", 2),
    "zygote-kill": ("zygote", "KILL", 1),
    "keeper-kill": ("keeper", "KILL", 1),
    "agent-kill": ("agent", "KILL", 1),
    "agent-stop": ("agent", "STOP", 1),
    "leader-kill": ("leader", "KILL", 1),
    "leader-stop": ("leader", "STOP", 1),
    "disk-full": ("disk", "full", 1),
    "network-cut": ("network", "cut", 1),
}
OF_SEVERAL_NODES = {"leader-kill", "leader-stop", "network-cut"}


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    after_s: float  # since the one before
    lasts_s: float  # of what is undone again: a stop, a cut, a full disk
    pick: int  # which of several victims

    @property
    def target(self):
        return KINDS[self.kind][0]

    @property
    def action(self):
        return KINDS[self.kind][1]


def draw(seed, kinds, mean_s):
    """Faults without end."""
    dice = random.Random(seed)
    weights = [KINDS[kind][2] for kind in kinds]
    while True:
        [kind] = dice.choices(kinds, weights)
        yield Fault(kind, dice.expovariate(1 / mean_s), dice.uniform(0.2, 3.0), dice.randrange(1 << 30))
