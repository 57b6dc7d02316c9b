"""`python -m ddprun OPTIONS train.py` is the program ddprun of this Python's environment, and its scripts are run by this Python
(PYTHON_EXEC counts more, as under torchrun).

DDPRUN_CALLERS_PYTHON names this Python to ddprun, and not to its workers: a Python that one of them starts may become ddprun, too.
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
    execute(path, [path, *sys.argv[1:]])


def execute(path, command):
    """This process becomes ddprun, with these words, of which the first is the name that it is called by."""
    if "debugpy" in sys.modules:
        debug(path, command)
    os.environ["DDPRUN_CALLERS_PYTHON"] = sys.executable
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; ddprun's workers would, too
        signal.signal(number, signal.SIG_DFL)
    for each in (sys.stdout, sys.stderr):
        if each is not None:
            each.flush()
    os.execv(path, command)


def debug(path, command):
    """The debugger's session is that of this process, which has to stay then."""
    import subprocess
    import tempfile
    from ddprun import debugging
    with tempfile.TemporaryDirectory(prefix="ddprun-debug-") as folder:
        python = debugging.python(folder)
        if python is None:
            return
        os.environ.pop("PYTHON_EXEC", None)
        job = subprocess.Popen(command, executable=path, env={**os.environ, "DDPRUN_CALLERS_PYTHON": python})
        while True:
            try:
                code = job.wait()
                break
            except KeyboardInterrupt:  # ddprun has got the signal, too
                pass
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
