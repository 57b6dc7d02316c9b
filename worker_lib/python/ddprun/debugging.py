"""Workers under the debugger of an IDE: where debugpy (VS Code and others) has started this process, it is told of them, too."""
import inspect
import os
import shlex
import sys


def python(folder: str) -> "str | None":
    """Makes a program in the folder that runs Python as this process is run by debugpy, and returns its path. None: it is not."""
    words, debugpy = sys.orig_argv, sys.modules.get("debugpy")
    begin = words.index("--connect") if "--connect" in words else 0
    if debugpy is None or os.path.basename(words[begin - 1]) != "debugpy":
        return None
    if "parent_session_pid" not in inspect.signature(debugpy.connect).parameters:  # an older one
        return None
    end = begin
    while words[end].startswith("--"):
        end += 1 if words[end] in ("--log-to-stderr", "--wait-for-client", "--disable-sys-remote-exec") else 2
    command = [sys.executable, *words[1:end], "--parent-session-pid", str(os.getpid())]
    path = os.path.join(folder, "python")
    with open(path, "w") as file:
        # debugpy takes no -u, which ddprun gives to each Python, and connects only where this variable is not that of a parent.
        file.write(f'#!/bin/sh\n[ "$1" = -u ] && shift\nunset DEBUGPY_RUNNING\nPYTHONUNBUFFERED=1 exec {shlex.join(command)} "$@"\n')
    os.chmod(path, 0o700)
    return path
