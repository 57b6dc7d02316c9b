import signal
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.default_int_handler)
import torch
print(signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM).__name__, signal.getsignal(signal.SIGPIPE),
      signal.pthread_sigmask(signal.SIG_BLOCK, ()), torch.__name__)

import said
said.end()
