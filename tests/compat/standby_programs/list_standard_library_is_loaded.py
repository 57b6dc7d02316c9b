import sys
import torch
import decimal
import json
print(json.dumps(1), decimal.Decimal(1), "json" in sys.modules, torch.__name__)

import said
said.end()
