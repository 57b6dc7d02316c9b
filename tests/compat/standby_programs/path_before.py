import os
import sys
os.makedirs("own/parts", exist_ok=True)
with open("own/parts/__init__.py", "w") as file:
    file.write("VALUE = 'own'\n")
sys.path.insert(0, "own")
import parts
print(parts.VALUE)

import said
said.end()
