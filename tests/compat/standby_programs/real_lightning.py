import logging
import os
import random
random.seed(4)
import lightning
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torchmetrics.utilities.prints import rank_zero_only as of_metrics
print(rank_zero_only.rank, of_metrics.rank, random.random(), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
print(len(logging.getLogger("lightning").handlers), [len(each.handlers) for each in (logging.root,)], lightning.__name__)

import said
said.end()
