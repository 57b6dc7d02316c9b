import sys
sys.modules["optional"] = None
sys.modules["parts.one"] = None
import parts
try:
    from parts import one
    print("there", one.VALUE)
except ImportError:
    print("blocked", parts.__name__)

import said
said.end()
