"""Python's side of files of weights: writes one with every type, or checks one that worker_lib wrote.

  python weights_files.py write FILE
  python weights_files.py check FILE
"""

import sys

import torch
from safetensors.torch import load_file, save_file


def tensors():
    """The same as all_types() in weights_test.cpp."""
    numbers = torch.arange(7, dtype=torch.int64)
    types = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16",
             "uint32", "uint64", "complex64", "float8_e4m3fn", "float8_e5m2"]
    named = {name: numbers.to(torch.float32).to(getattr(torch, name)) if name.startswith("float8")
             else numbers.to(getattr(torch, name)) for name in types}
    named["bool"] = numbers % 2 == 1
    named["transposed"] = torch.arange(6, dtype=torch.float32).view(2, 3).t().contiguous()
    named["scalar"] = torch.tensor(5, dtype=torch.int64)
    named["empty"] = torch.empty(0, 4)
    return named


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def main():
    action, path = sys.argv[1:]
    expected = tensors()
    if action == "write":
        save_file(expected, path)
        return
    found = load_file(path)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(bits(found[name]), bits(tensor)), name


if __name__ == "__main__":
    main()
