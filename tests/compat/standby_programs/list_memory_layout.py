import torch
print(id(torch) != id(print), len({id(torch), id(print)}))

import said
said.end()
