#!/usr/bin/env python3
"""What the documents tell people to type works, and what they show is what comes out.

    documents.py BIN    (the folder with ddprun, ddpctl and the examples)

- Every command of ddprun is resolved by --dry-run; of ddpctl, every option is in the command's --help; scripts exist.
- A transcript is a fenced block after <!-- transcript: NAME -->: its commands are run and its output is compared, line by
  line, with all numbers, the host and the folder as wildcards. Any other block that shows output after a prompt needs
  <!-- seen in: FILE -->, the test or script that shows it.
- Links to files of the project, and to headings in them, lead somewhere.
"""

import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else ROOT / "build/bin"
PROMPT = re.compile(r"^[a-z0-9]*\$ ")
MARK = re.compile(r"^<!-- (transcript|seen in): (.*) -->$")
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")

TRAIN_PY = '''import os
import sys
import time


def learning_rate():
    raise ValueError("lr must be positive, got -0.1")


if os.environ["RANK"] == "1":
    learning_rate()
time.sleep(60)
'''


def documents():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
                           stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    return [ROOT / name for name in names]


class Block:
    def __init__(self, where, mark, lines, is_fenced):
        self.where, self.mark, self.lines, self.is_fenced = where, mark, lines, is_fenced

    # [(command, [output lines])]; a block without any prompt is of commands only where it is indented.
    def commands(self):
        found = []
        has_prompts = any(PROMPT.match(line) for line in self.lines)
        if self.is_fenced and not has_prompts:
            return []  # a picture
        lines = iter(self.lines)
        for line in lines:
            if has_prompts and not PROMPT.match(line):
                if found and line.strip() and not line.startswith("#"):
                    found[-1][1].append(line)
                continue
            command = PROMPT.sub("", line)
            while command.endswith("\\"):
                command = command[:-1] + next(lines).strip()
            found.append((re.sub(r"\s{2,}#.*$", "", command).strip(), []))
        return found


def blocks(path):
    found, fenced, mark, indented, before = [], None, None, [], ""
    for number, line in enumerate(path.read_text().splitlines() + [""], 1):
        where = f"{path.relative_to(ROOT)}:{number}"
        if line.startswith("```"):
            if fenced is None:
                fenced = [] if line == "```" else False  # of a language: no transcript
            else:
                if fenced:
                    found.append(Block(where, mark, fenced, True))
                fenced, mark = None, None
        elif fenced is not None:
            if fenced is not False:
                fenced.append(line)
        elif line.startswith("    "):
            indented.append(line[4:])
        else:
            if indented:
                found.append(Block(where, mark, indented, False))
                indented, mark = [], None
            if MARK.match(line):
                mark = MARK.match(line).groups()
            elif line.strip():
                mark = None
    return found


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shape(text, folder):
    for variable in (socket.gethostname(), str(folder)):
        text = text.replace(variable, "…")
    text = re.sub(r"(host +)\S+,", r"\1…,", text).replace("/srv/job", "…")
    text = re.sub(r"\d+(\.\d+)?", "0", text)
    text = re.sub(r"\b(0 h )?(0 min )?0 (ms|s)\b", "0 s", text)
    text = re.sub(r", 0 s for 0 steps? again", "", text)  # none or some
    text = re.sub(r"\b0 steps? repeated", "0 steps repeated", text)
    text = re.sub(r"\brunning, (collective|joining)\b", "running", text)  # one moment or another
    lines = [re.sub(r" +", " ", line).rstrip() for line in text.splitlines()]
    return [line for line in lines if line and not re.match(r"epoch 0/0 0 %", line)]  # a slow machine's


class Documents(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name, text in (("train.py", TRAIN_PY), ("train", "#!/bin/sh\n")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "build").mkdir()
        (self.folder / "build/bin").symlink_to(BIN)
        self.environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHON_EXEC": "/usr/bin/python3",
                            "OMP_NUM_THREADS": "1"}

    def run_in_folder(self, command):
        return subprocess.run(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=100)

    def all_blocks(self):
        return [(path, block) for path in documents() for block in blocks(path)]

    def test_every_command_of_ddprun_makes_a_plan(self):
        seen = 0
        for _, block in self.all_blocks():
            for command, _ in block.commands():
                match = re.search(r"(?:^|\s)(?:build/bin/)?ddprun (.*)$", command)
                if not match or not re.match(r"(ddprun|build/bin/ddprun|srun) ", command):
                    continue
                arguments = shlex.split(match.group(1).split(";")[0].split("|")[0])
                arguments = [argument.replace("=gpu", "=auto") for argument in arguments]  # here may be no GPU
                if "--as-torchrun" in arguments:  # which executes the command, and that may not be there
                    arguments = [*arguments[:arguments.index("--")], "--", "true"]
                    plan = self.run_in_folder([str(BIN / "ddprun"), *arguments])
                elif any(argument.startswith("--print-") or argument in ("--version", "--help") for argument in arguments):
                    plan = self.run_in_folder([str(BIN / "ddprun"), *arguments])
                else:
                    plan = self.run_in_folder([str(BIN / "ddprun"), "--dry-run", *arguments])
                self.assertEqual(plan.returncode, 0, f"{block.where}: {command}\n{plan.stdout}")
                seen += 1
        self.assertGreater(seen, 8)

    def test_every_command_of_ddpctl_knows_its_options(self):
        seen = 0
        for _, block in self.all_blocks():
            for command, _ in block.commands():
                words = shlex.split(command) if command.startswith("ddpctl ") else []
                words = [word for word in words if word not in ("|", ";")]
                if len(words) < 2 or words[1].startswith("-"):
                    continue
                text = self.run_in_folder([str(BIN / "ddpctl"), words[1], "--help"])
                self.assertEqual(text.returncode, 0, f"{block.where}: {command}\n{text.stdout}")
                for word in words[2:]:
                    if word.startswith("-"):
                        self.assertIn(word.split("=")[0], text.stdout, f"{block.where}: {command}")
                seen += 1
        self.assertGreater(seen, 0)

    def test_scripts_are_there(self):
        for _, block in self.all_blocks():
            for command, _ in block.commands():
                name = command.split(" ")[0]
                if name.startswith("scripts/"):
                    self.assertTrue(os.access(ROOT / name, os.X_OK), f"{block.where}: {command}")

    def test_links_lead_somewhere(self):
        for path in documents():
            for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]*))?\)", path.read_text()):
                if re.match(r"[a-z]+:", target):
                    continue
                page = path.parent / target if target else path
                self.assertTrue(page.exists(), f"{path.relative_to(ROOT)}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(page), f"{path.relative_to(ROOT)}: {target}#{anchor}")

    def test_whatever_shows_output_is_run_somewhere(self):
        names = set()
        for _, block in self.all_blocks():
            if not any(output for _, output in block.commands()):
                continue
            self.assertIsNotNone(block.mark, f"{block.where}: output after a prompt, and nothing says who checks it")
            kind, name = block.mark
            if kind == "seen in":
                self.assertTrue((ROOT / name).exists(), f"{block.where}: {name}")
            else:
                self.assertTrue(hasattr(self, f"test_transcript_{name}"), f"{block.where}: no test for '{name}'")
                names.add(name)
        for test in (name for name in dir(self) if name.startswith("test_transcript_")):
            self.assertIn(test[len("test_transcript_"):], names, "a transcript that no document has")

    # The commands of the block, and while they run, what somebody else does.
    def transcript(self, name, meanwhile=None):
        [block] = [block for _, block in self.all_blocks() if block.mark == ("transcript", name)]
        for command, output in block.commands():
            if not os.environ.get("DDPRUN_TEST_FULL"):  # long enough for what happens meanwhile
                command = re.sub(r"\btrain --epochs 1\b", r"\g<0> --limit 40000", command)
            job = subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                if meanwhile:
                    meanwhile(job)
                # A survivor that notices the death before it is stopped may say so, on a busy machine.
                printed = "".join(line for line in job.communicate(timeout=100)[0].splitlines(keepends=True)
                                  if "communication failed on" not in line)
            finally:
                if job.poll() is None:
                    job.terminate()
                    job.wait()
            self.assertEqual(shape(printed, self.folder), shape("\n".join(output), self.folder),
                             f"{block.where}:\n{printed}")

    def kill_a_worker(self, with_argument):
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            is_ours = b"DOCUMENTS_TEST=" + os.fsencode(self.folder) in variables
            if is_ours and b"RANK=1" in variables and with_argument in arguments:
                os.kill(int(pid), 9)

    # What is looked at belongs to another process and cannot be awaited.
    def await_that(self, what, is_so):
        until = time.monotonic() + 60
        while not is_so():
            self.assertLess(time.monotonic(), until, what)
            time.sleep(0.02)

    def test_transcript_report(self):
        self.transcript("report")

    def test_transcript_restart(self):
        if not DATA.exists():
            self.skipTest("Fashion-MNIST is not installed")
        (self.folder / "train").unlink()  # the example's
        checkpoints = self.folder / "ckpt"

        def kill_rank_1(job):
            # A file alone may be one that is being written: a kill then leaves no checkpoint to continue from.
            self.await_that("no checkpoint", lambda: job.poll() is not None or
                            (checkpoints / "latest.safetensors").exists())
            self.kill_a_worker(b"ckpt")

        self.environment["DOCUMENTS_TEST"] = str(self.folder)
        self.transcript("restart", kill_rank_1)

    def test_transcript_status(self):
        if not DATA.exists():
            self.skipTest("Fashion-MNIST is not installed")
        (self.folder / "train").unlink()  # the example's
        self.environment["DOCUMENTS_TEST"] = str(self.folder)
        self.environment["XDG_RUNTIME_DIR"] = str(self.folder)
        status = lambda: self.run_in_folder(["ddpctl", "status", "fashion"]).stdout
        job = subprocess.Popen(["ddprun", "--nproc_per_node=2", "--rdzv-id=fashion", "--max-restarts=3", "train",
                                "--epochs", "50"], cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        try:
            self.await_that("no step", lambda: len(re.findall(r"\d of \d+  ", status())) == 2)
            self.kill_a_worker(b"50")
            self.await_that("no step again", lambda: "RESTARTS" in (text := status()) and
                            len(re.findall(r"\d of \d+  ", text)) == 2)
            self.transcript("status")
        finally:
            job.terminate()
            job.wait()


if __name__ == "__main__":
    unittest.main(verbosity=2)
