"""`python -m ddprun OPTIONS train.py` is the program ddprun of this Python's environment, and its scripts are run by this Python
(PYTHON_EXEC counts more, as under torchrun).
"""
import os
import signal
import sys

from ddprun import program


def main():
    try:
        path = program.find()
    except FileNotFoundError as error:
        print(f"ddprun: {error}", file=sys.stderr)
        sys.exit(127)
    os.environ["PYTHON_EXEC"] = os.environ.get("PYTHON_EXEC") or sys.executable
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; ddprun's workers would, too
        signal.signal(number, signal.SIG_DFL)
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
