import gc
import weakref
import torch


class Node:
    pass


node = Node()
node.itself, seen = node, weakref.ref(node)
del node
gc.collect()
print(seen() is None, gc.isenabled(), torch.__name__)

import said
said.end()
