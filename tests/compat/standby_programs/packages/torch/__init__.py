"""Stands for PyTorch where a program is about imports: it is there at once."""
import os

loaded_by = os.getenv("NOT_SET"), id(os)
float32, float64 = "float32", "float64"
_settings = {"dtype": float32, "grad": True, "deterministic": False}


class _Generator:
    def seed(self):
        return 0


default_generator = _Generator()


def get_default_dtype():
    return _settings["dtype"]


def set_default_dtype(dtype):
    _settings["dtype"] = dtype


def get_default_device():
    return "cpu"


def is_grad_enabled():
    return _settings["grad"]


def are_deterministic_algorithms_enabled():
    return _settings["deterministic"]


def get_float32_matmul_precision():
    return "highest"


def get_rng_state():
    import array
    return array.array("b")


def relu(value):
    return max(0, value)
