"""Reads a rank's variable past os.environ."""
import posix
RANK = posix.environ.get(b"RANK")
