import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(3)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print([each.item().hex() for each in model.module.weight.flatten()], torch.rand(1).item().hex())
print(os.environ.get("TORCHINDUCTOR_CACHE_DIR"), torch.get_num_threads(), torch.get_default_dtype())

import said
said.end()
