"""Says how far it is by ddprun.progress, and fails; a child that it forks says something else, which must not count."""

import os
import sys

from ddprun import progress

progress.report(411, total=1000, loss=0.5)
progress.report(412, 1000, loss=0.25, **{"learning rate": 1e-3})
child = os.fork()
if child == 0:
    progress.report(999, loss=9)
    os._exit(0)
os.waitpid(child, 0)
sys.exit(3 if "DDPRUN_LINK_FD" in os.environ else 0)
