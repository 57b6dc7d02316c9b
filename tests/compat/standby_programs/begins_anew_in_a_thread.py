import ctypes
import os
import signal
import threading
os.environ["LOOKER"] = "2"
found = []


def imports():
    import looker
    found.append(looker.variable)


thread = threading.Thread(target=imports)
thread.start()
thread.join()
at_death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(at_death))  # PR_GET_PDEATHSIG
with open("/proc/self/status") as file:
    print([line for line in file if line.startswith("SigIgn")])
print(found, at_death.value, signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN)

import said
said.end()
