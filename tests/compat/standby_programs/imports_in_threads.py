import importlib
import sys
import threading
sys.setswitchinterval(1e-6)
NAMES = ["several", "looker", "parts", "parts.one", "printer", "setter", "with_data", "with_decimal", "torch", "torch.nn.parallel"]
begin = threading.Barrier(2 * len(NAMES))
found = {}


def imports(name, at):
    begin.wait()
    found[name, at] = importlib.import_module(name)


threads = [threading.Thread(target=imports, args=(name, at)) for name in NAMES for at in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
several = sys.modules["several"]
print(all(found[name, at] is sys.modules[name] for name, at in found), len(found))
print([module.__spec__.name for module in several.MODULES], [sys.modules[each.__name__] is each for each in several.MODULES])
print([sys.modules[name].__spec__.name for name in NAMES], {type(sys.modules[name].__loader__).__name__ for name in NAMES})

import said
said.end()
