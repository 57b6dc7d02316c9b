import sys
first, second = [at for at, each in enumerate(sys.path) if each.rstrip("/").endswith(("/packages", "/second"))]
sys.path[first], sys.path[second] = sys.path[second], sys.path[first]
import parts
print(parts.__file__)

import said
said.end()
