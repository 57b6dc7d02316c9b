"""Copies the environment."""
import os
ENV = dict(os.environ)
RANK = int(ENV.get("RANK", -1))
