import torch
torch.manual_seed(3)
function = torch.compile(lambda x: (x.sin() + 1).sum(), backend="aot_eager")
print(function(torch.ones(4)).item().hex())

import said
said.end()
