#!/usr/bin/env python3
"""What a shell offers after a word and <TAB>, by the scripts that ddprun and ddpctl print, with jobs that run.

    completions.py SHELL DDPRUN DDPCTL     SHELL: bash, zsh or fish; ends with 77 where it is not installed
"""

import os
import pathlib
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE_S = 60
SHELL, DDPRUN, DDPCTL = sys.argv[1:]

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_{program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

# The line editor needs a terminal. Completion functions call compadd, which here also writes the matches to a file.
ZSH = """
PROMPT= ; unset zle_bracketed_paste
autoload -U compinit; compinit -D -u
source {script}
bindkey '^I' complete-word
compadd() {{
  local -a found
  if [[ " ${{(j: :)@}} " != *" -"[OAD]" "* ]]; then
    builtin compadd -O found "$@"
    (( $#found )) && print -rl -- $found >>{out}
  fi
  builtin compadd "$@"
}}
comppostfuncs=(over)
over() {{ exit }}
touch {folder}/ready
"""


def awaits(what, holds):
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        if time.monotonic() > deadline:
            sys.exit(f"completions: {what}: it did not come to that")
        time.sleep(0.02)
    return found


class Completion:
    def __init__(self, folder, control):
        self.folder = folder
        self.environment = {"PATH": f"{pathlib.Path(DDPCTL).parent}:/usr/bin:/bin", "HOME": str(folder), "TERM": "xterm",
                            "DDPRUN_CONTROL_DIR": str(control), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        self.scripts = {}
        for program in (DDPRUN, DDPCTL):
            name = pathlib.Path(program).name
            self.scripts[name] = folder / f"{name}.{SHELL}"
            self.scripts[name].write_text(self.output(program, f"--print-completion={SHELL}"))

    def output(self, *command):
        return subprocess.run(command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, check=True,
                              stdout=subprocess.PIPE, text=True).stdout

    def of(self, line):
        """The words that are offered at the end of the line."""
        program = line.split()[0]
        script = shlex.quote(str(self.scripts[program]))
        if SHELL == "bash":
            words = line if line[-1] != " " else line + "''"
            return self.output("bash", "-c", BASH.format(script=script, words=words, program=program)).split()
        if SHELL == "fish":
            offered = self.output("fish", "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}")
            return [each.split("\t")[0] for each in offered.splitlines()]
        return self.of_zsh(line, script)

    def of_zsh(self, line, script):
        out, ready = self.folder / "out", self.folder / "ready"
        for each in (out, ready):
            each.unlink(missing_ok=True)
        (self.folder / "init").write_text(ZSH.format(script=script, out=out, folder=self.folder))
        outer, inner = pty.openpty()
        shell = subprocess.Popen(["zsh", "-f", "-i"], env=self.environment, cwd=self.folder, stdin=inner, stdout=inner,
                                 stderr=inner, start_new_session=True)
        os.close(inner)
        reader = threading.Thread(target=self.drain, args=(outer,))
        reader.start()
        try:
            os.write(outer, b"source ./init\n")
            awaits("zsh begins", ready.exists)
            os.write(outer, line.encode() + b"\t")
            shell.wait(timeout=DEADLINE_S)
        finally:
            shell.kill()
            shell.wait()
            reader.join()
            os.close(outer)
        return out.read_text().split() if out.exists() else []

    @staticmethod
    def drain(terminal):
        try:
            while os.read(terminal, 4096):
                pass
        except OSError:
            pass  # the shell has ended


def same(line, found, wanted):
    if sorted(set(found)) != sorted(wanted):
        sys.exit(f"completions: {SHELL} offers {found[:20]!r} after {line!r} and not {wanted!r}")


def test_options(completion):
    for line, wanted in (("ddprun --max-r", ["--max-restarts"]), ("ddprun --exit-code ", ["torchrun", "worker"]),
                         ("ddpctl rep", ["replace", "replay"]), ("ddpctl logs --ta", ["--tail"]),
                         ("ddpctl store sta", ["stats"])):
        same(line, completion.of(line), wanted)


def test_jobs(completion, agents):
    """A job with an id that a shell would take for more than one word is offered by the process id of its agent."""
    def offered():
        return completion.output(DDPCTL, "--print-jobs=status").splitlines()
    awaits("both jobs run", lambda: len([line for line in offered() if line.endswith("sleep, running")]) == 2)
    pid = str(agents[1].pid)
    for command in ("status", "logs", "stop"):
        found = [each for each in completion.of(f"ddpctl {command} ") if not each.startswith("-")]
        same(f"ddpctl {command} ", found, ["night-run", pid])
    same("ddpctl stop nig", completion.of("ddpctl stop nig"), ["night-run"])
    same("ddpctl forget ni", [each for each in completion.of("ddpctl forget ni") if each], [])


def main():
    if shutil.which(SHELL) is None:
        print(f"completions: {SHELL} is not installed here; its completion was not tried")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as temporary:
        folder, control = pathlib.Path(temporary) / "home", pathlib.Path(temporary) / "control"
        folder.mkdir()
        completion = Completion(folder, control)
        test_options(completion)
        agents = [subprocess.Popen([DDPRUN, f"--rdzv-id={job}", "--no-python", "sleep", "1000"], env=completion.environment,
                                   stderr=subprocess.DEVNULL)
                  for job in ("night-run", "$(id) x")]
        try:
            test_jobs(completion, agents)
        finally:
            for agent in agents:
                agent.send_signal(signal.SIGTERM)
            for agent in agents:
                agent.wait()


main()
