import sys
import types
sys.modules["optional"] = types.ModuleType("optional")
import looker
print(looker.optional is sys.modules["optional"])

import said
said.end()
