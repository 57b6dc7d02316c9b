import sys
found = []


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            found.append(name)

sys.meta_path.insert(0, Finder())
import torch
print(found, torch.__name__)

import said
said.end()
