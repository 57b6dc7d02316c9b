"""Copies what os.environ was made of."""
import posix
ENV = dict(posix.environ)
