"""The list of PyTorch's private names that the package uses (ddprun/torch_names.py) is complete, has no name too many, and fits the
PyTorch that is installed."""

import ast
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("worker_lib/python",)
# Names of Python's own.
PYTHONS = {"_exit", "_getframe", "_current_frames", "_C", "_distributed_c10d"}
# What this package calls objects of PyTorch whose attributes it sets.
OBJECTS_OF_PYTORCH = ("c10d", "ddp", "dist", "optimizer")


def _is_private(name):
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def _private_names(tree):
    """(those that are looked up on an object that is not self, texts, those that are defined) in a module."""
    used, texts, own = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            of = node.value.id if isinstance(node.value, ast.Name) else None
            is_own = of == "self" or isinstance(node.ctx, ast.Store) and of is not None and of not in OBJECTS_OF_PYTORCH
            (own if is_own else used).add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            used.update(each.value for each in node.args if isinstance(each, ast.Constant) and _is_private(each.value))
        elif isinstance(node, ast.Constant) and _is_private(node.value):
            texts.add(node.value)
    return used, texts, own


class Names(unittest.TestCase):
    def test_the_list_is_complete(self):
        from ddprun import torch_names
        listed = {name for names in torch_names.NEEDED.values() for name in names} | set(torch_names.OPTIONAL)
        used, texts, own = set(), set(), set()
        for path in [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.name != "torch_names.py"]:
            for all_found, its in zip((used, texts, own), _private_names(ast.parse(path.read_text()))):
                all_found |= its
        found = {name for name in used - own - PYTHONS if not name.startswith("_ddprun") and name.isidentifier()}
        self.assertEqual(found - listed, set(), "private names of PyTorch that are not in ddprun/torch_names.py")
        self.assertEqual(listed - found - texts - own, set(), "names in ddprun/torch_names.py that are not used any more")

    def test_this_pytorch_has_them(self):
        from ddprun import torch_names
        import torch.nn.parallel
        self.assertIsNone(torch_names.missing())

    def test_what_is_missing_is_named(self):
        from unittest import mock
        from ddprun import torch_names
        with mock.patch.dict(torch_names.NEEDED, {"torch.distributed": {"_nothing": ""}}):
            self.assertIn("has no torch.distributed._nothing", torch_names.missing())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "worker_lib/python"))
    unittest.main(argv=sys.argv[:1], verbosity=2)
