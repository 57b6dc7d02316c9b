import os
import signal
import sys
state = os.getcwd() == os.environ["PWD"], os.environ.get("CHANGED"), os.umask(0o27), signal.getsignal(signal.SIGUSR2)
os.environ["CHANGED"] = "1"
os.environ["LOOKER"] = "2"
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 1000)
os.makedirs("below", exist_ok=True)
os.chdir("below")
import looker
print(state, looker.variable, len(sys.argv), sorted(name for name in os.environ if name.startswith("DDPRUN_Z")))
print(os.environ["PYTHONPATH"], [each for each in sys.path if each.startswith("/proc")], "_ddprun_hooks" in sys.modules)

import said
said.end()
