"""Replaces a function of PyTorch."""
import torch
_relu = torch.relu
torch.relu = lambda value: 2 * _relu(value)
