import os
import parts
os.environ["LOOKER"] = "between"
import looker
print(looker.variable, parts.__name__)

import said
said.end()
