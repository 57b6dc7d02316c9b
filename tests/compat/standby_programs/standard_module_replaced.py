import sys
import types
fake = types.ModuleType("decimal")
sys.modules["decimal"] = fake
import with_decimal
import decimal
print(decimal is fake, with_decimal.__name__)

import said
said.end()
