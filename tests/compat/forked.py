"""Ranks in forks of this process, which has imported torch: an import of its own takes longer than most cases.

Whoever imports this sets OMP_NUM_THREADS first, which torch reads once.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback

import torch._dynamo  # noqa: F401  (the first optimizer of a process imports it, for a second)

LIMIT_S = 300


class Forked:
    """main() in a fork of this process, with these arguments and no other variables. It has what is used of a Popen."""

    def __init__(self, main, arguments, variables, enter=lambda: None):
        self.arguments, self.returncode = arguments, None
        self.said = [tempfile.TemporaryFile("w+") for _ in range(2)]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self.become(main, variables, enter)

    def become(self, main, variables, enter):
        code = 1
        try:
            for descriptor, file in enumerate(self.said, start=1):
                os.dup2(file.fileno(), descriptor)
            os.environ.clear()
            os.environ.update(variables)
            sys.argv = [sys.argv[0], *self.arguments]
            enter()
            main()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def communicate(self, timeout):
        descriptor = os.pidfd_open(self.pid)
        try:
            if not select.select([descriptor], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.arguments, timeout)
        finally:
            os.close(descriptor)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for file in self.said:
            file.seek(0)
        return [file.read() for file in self.said]

    def kill(self):
        for file in self.said:
            file.close()
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def rank_variables(rank, size, port, per_node=0):
    """What a launcher tells a rank, of as many as `per_node` on each node (0: all on one)."""
    per_node = per_node or size
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % per_node),
            "LOCAL_WORLD_SIZE": str(per_node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def run_twin(size, main, *arguments):
    """main() on so many ranks with these arguments; an error if one does not end well."""
    # Held, bound and never listening, until all have ended: rank 0 binds it too (SO_REUSEADDR).
    with socket.socket() as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        ranks = [Forked(main, arguments, {**os.environ, **rank_variables(rank, size, port.getsockname()[1])})
                 for rank in range(size)]
        try:
            for number, rank in enumerate(ranks):
                _, errors = rank.communicate(LIMIT_S)
                assert rank.returncode == 0, f"rank {number} of Python ended with {rank.returncode}: {errors[-3000:]}"
        finally:
            for rank in ranks:
                rank.kill()
