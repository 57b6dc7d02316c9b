"""Iterates over the bytes of the environment."""
import os
RANK = int(next((value for name, value in os.environb.items() if name == b"RANK"), b"-1"))
