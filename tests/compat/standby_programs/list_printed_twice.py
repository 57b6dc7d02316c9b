import os
print("before", flush=True)
os.environ["LOOKER"] = "set"
import looker
print("after", looker.variable)

import said
said.end()
