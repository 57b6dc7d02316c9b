import importlib.machinery
import importlib.util
import pkgutil
import runpy
spec = importlib.util.find_spec("parts")
print(spec.cached, spec.loader.path, spec.loader.get_source("parts"), isinstance(spec.loader, importlib.machinery.SourceFileLoader))
print(hasattr(spec.loader, "get_data"), hasattr(spec.loader, "archive"), spec.loader.is_package("parts"))
print(runpy.run_module("setter")["__name__"], runpy.run_module("printer")["__spec__"].origin)
print(pkgutil.get_data("with_data", "data.txt"))
import parts
import replaces_itself
import with_data
print(parts.__spec__.loader is parts.__loader__, type(parts.__loader__).__name__, with_data.VALUE, replaces_itself.VALUE)
print(replaces_itself.__loader__, hasattr(replaces_itself, "__file__"), replaces_itself.__package__, replaces_itself.__spec__.name)

import said
said.end()
