import torch
print(hash("a"), hash(b"b"), list({"x", "y", "z"}), torch.__name__)  # with PYTHONHASHSEED

import said
said.end()
