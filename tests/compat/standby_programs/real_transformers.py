import os
import random
import torch
random.seed(4)
torch.manual_seed(4)
import transformers
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from transformers.utils import hub
print(random.random(), torch.rand(1).item())
model = BertForSequenceClassification(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=1,
                                                 intermediate_size=16, vocab_size=32))
print(sum(each.sum().item() for each in model.parameters()).hex(), transformers.logging.get_verbosity())
print(TrainingArguments(output_dir=os.environ["FOLDER"]).local_rank)
with open(f"{os.environ['FOLDER']}/drawn-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a") as file:
    file.write(hub.SESSION_ID + "\n")

import said
said.end()
