import os
os.environ["LOOKER"] = "set"
import looker
print(looker.variable)

import said
said.end()
