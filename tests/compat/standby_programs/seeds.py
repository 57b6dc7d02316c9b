import random
import torch
random.seed(5)
import parts
print(random.random(), torch.__name__, parts.__name__)
state = random.getstate()
random.seed()
print(random.getstate() != state)

import said
said.end()
