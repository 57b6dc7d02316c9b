"""Replaces a method of PyTorch, and adds another."""
import torch
_seed = torch._Generator.seed
torch._Generator.seed = lambda self: _seed(self) + 1
torch._Generator.added = lambda self: 2
