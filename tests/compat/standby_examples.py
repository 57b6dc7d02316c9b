"""What the examples print and write, bit for bit: by workers that were started, and by workers that were forked from a
process that waited in its Context.

    python3 standby_examples.py FOLDER-OF-THE-PROGRAMS LIBRARY-THAT-HOLDS-EXITS [EXAMPLE…]

All of them with DDPRUN_TEST_FULL=1, else three.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 2
LIMIT_S = 600
EXAMPLES = {
    "accumulate": [],
    "mixed_precision": [],
    "recoverable": [],
    "trainer": ["checkpoints"],
    "collectives": [],
    "inference": ["--train-steps", "20", "--limit", "2000", "--output", "answers.txt"],
    "resume_elastic": ["--checkpoint-dir", "checkpoints"],
    "sentence_classifier": ["--epochs", "3"],
    "ddprun_recorded_train": ["--epochs", "1", "--limit", "4000", "--checkpoint-dir", "checkpoints"],
    "train_manual_loop": [],
}
QUICK = ("collectives", "resume_elastic", "ddprun_recorded_train")
SPEED = re.compile(r"\d+ samples/s")
# Of the round before: what it has written must not be what the next one continues from.
WRITTEN = ("answers.txt", "losses.rank0", "losses.rank1")


def content(path):
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def result(folder, attempt):
    """What each rank has printed, and what the program has written."""
    logs, = (folder / "logs").glob(f"*/attempt_{attempt}")
    printed = {rank: SPEED.sub("…", (logs / f"{rank}/stdout.log").read_text()) for rank in range(RANKS)}
    written = {name: (folder / name).read_bytes() for name in WRITTEN if (folder / name).exists()}
    return printed, written, content(folder / "checkpoints")


def are_settled(node):
    """All standbys wait, and all that are to be prepared for a rank are: each of these is one that has waited."""
    replacement = node.get("replacement") or {"can_recover": False}
    is_one_taken = replacement["can_recover"] and not replacement["why_none"] and replacement["waiting"] < RANKS
    return node["standbys"]["waiting"] == RANKS and not is_one_taken


class Job:
    def __init__(self, programs, name, folder, *options, **variables):
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "DDPRUN_CONTROL_DIR": str(folder),
                            "DDPRUN_RECORD_LOSSES": "losses", **variables}
        self.job = subprocess.Popen(
            [programs / "ddprun", f"--nproc-per-node={RANKS}", "--redirects=3", "--log-dir=logs", "--rdzv-id=job",
             "--events=events", *options, programs / name, *EXAMPLES[name]],
            cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.job.send_signal(signal.SIGTERM)
        self.job.communicate()

    def ends_well(self):
        _, said = self.job.communicate(timeout=LIMIT_S)
        if self.job.returncode != 0:
            sys.exit(f"{' '.join(map(str, self.job.args))} ended with {self.job.returncode}:\n{said}")

    def workers(self, round_number):
        events = map(json.loads, (self.folder / "events").read_text().splitlines())
        return {worker["rank"]: worker["pid"] for event in events
                if event["event"] == "round_started" and event["round"] == round_number for worker in event["workers"]}

    def until(self, holds, what):
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            if self.job.poll() is not None:
                sys.exit(f"{self.job.args} has ended:\n{self.job.stderr.read()}")
            if time.monotonic() > deadline:
                sys.exit(f"{self.job.args}: {what} in {LIMIT_S} s")
            time.sleep(0.05)

    def is_work_done(self):
        return len(list(self.folder.glob("done-*"))) >= RANKS

    def do_standbys_wait(self, ddpctl):
        asked = subprocess.run([ddpctl, "status", "--json", "job"], stdout=subprocess.PIPE, env=self.environment,
                               stderr=subprocess.DEVNULL, check=False)
        return asked.returncode == 0 and are_settled(json.loads(asked.stdout)["nodes"][0])


def started(programs, name, folder):
    with Job(programs, name, folder) as job:
        job.ends_well()
    return result(folder, 0)


def forked(programs, hold, name, folder):
    with Job(programs, name, folder, f"--standby={RANKS}", "--max-restarts=1", LD_PRELOAD=str(hold)) as job:
        job.until(job.is_work_done, "the workers have not done their work")  # before, they are replaced in place
        job.until(lambda: job.do_standbys_wait(programs / "ddpctl"), "no standbys")
        for path in [folder / each for each in WRITTEN] + list((folder / "checkpoints").rglob("*")):
            path.unlink(missing_ok=True)
        os.kill(job.workers(0)[0], signal.SIGKILL)
        job.ends_well()
        for pid in job.workers(1).values():
            if (folder / f"done-{pid}").read_text() == str(pid):
                sys.exit(f"{name}: the worker {pid} of the second round was not forked")
    return result(folder, 1)


def main():
    programs, hold = (pathlib.Path(each).resolve() for each in sys.argv[1:3])
    failed = []
    for name in sys.argv[3:] or (EXAMPLES if os.environ.get("DDPRUN_TEST_FULL") else QUICK):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            expected = started(programs, name, pathlib.Path(one))
            seen = forked(programs, hold, name, pathlib.Path(other))
        print(f"{name}: {'the same' if seen == expected else 'NOT the same'}")
        if not any(expected[0].values()):
            sys.exit(f"{name} prints nothing to compare")
        if seen != expected:
            failed.append(name)
            for what, (was, now) in zip(("printed", "written", "checkpoints"), zip(expected, seen)):
                for key in sorted(set(was) | set(now), key=str):
                    if was.get(key) != now.get(key):
                        print(f"  {what} {key}: {was.get(key)!r:.400}\n  now: {now.get(key)!r:.400}")
    sys.exit(f"not the same: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
