import os
import sys
os.makedirs("own/parts", exist_ok=True)
with open(f"own/parts/{os.getpid()}", "w") as file:
    file.write("VALUE = 'own'\n")
os.replace(file.name, "own/parts/__init__.py")  # another rank may be reading it
sys.path.insert(0, "own")
import parts
print(parts.VALUE)

import said
said.end()
