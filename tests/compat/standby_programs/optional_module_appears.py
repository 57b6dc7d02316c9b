import os
import sys
os.makedirs(f"own{os.environ['RANK']}", exist_ok=True)
open(f"own{os.environ['RANK']}/optional.py", "w").close()
sys.path.append(f"own{os.environ['RANK']}")
import looker
print(looker.optional is not None)

import said
said.end()
