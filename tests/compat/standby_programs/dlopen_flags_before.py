import os
import sys
sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL)
import looker
print(looker.dlopen_flags == sys.getdlopenflags(), bool(looker.dlopen_flags & os.RTLD_GLOBAL))

import said
said.end()
