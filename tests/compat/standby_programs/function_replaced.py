import builtins
plain = builtins.repr
builtins.repr = lambda value: plain(value)
import looker
print(looker.repr_of is builtins.repr)

import said
said.end()
