import os
import sys
import said
sys.path.remove(os.path.dirname(said.__file__))
try:
    import parts
    print(parts.__file__)
except ImportError:
    print("none")

said.end()
