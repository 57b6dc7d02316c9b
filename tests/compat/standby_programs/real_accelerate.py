import accelerate
import torch
accelerator = accelerate.Accelerator(cpu=True)
print(accelerator.process_index, accelerator.num_processes, accelerator.device)

import said
said.end()
