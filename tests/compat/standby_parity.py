"""Each case of standby_cases.py does the same in a plain start and in a standby that has loaded PyTorch: exit code,
output and traceback.

    python standby_parity.py [together | apart | CASE…]

Most of them follow each other in one process, up to one that ends it (together); the others have one each (apart). With
DDPRUN_TEST_FULL=1 each case has a process of its own, and starts two processes of each kind, each of which imports PyTorch,
instead of one.
"""

import ctypes
import inspect
import os
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "unit/agent/standby"), str(HERE)]
import standby_cases  # noqa: E402
import zygote_test  # noqa: E402

MODULES = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.data")
NOT_CASES = {"square"}
FULL = bool(os.environ.get("DDPRUN_TEST_FULL"))
# The last one of each ends its process.
TOGETHER = (("loader", "processes", "pickles", "step", "parallel_region", "group", "compiled", "random_numbers", "profiled",
             "modules", "late_thread", "exit_handlers"), ("traced", "raises"))
# What differs between any two runs: addresses, times, process ids.
DIFFERS = re.compile(r"0x[0-9a-f]+|\d+\.\d+ seconds|\b\d+\.\d{3}\b|pid \d+")


def cases(chosen):
    names = [name for name, each in vars(standby_cases).items() if inspect.isfunction(each) and name not in NOT_CASES]
    together = [name for each in TOGETHER for name in each]
    groups = {"together": together if FULL else [",".join(each) for each in TOGETHER],
              "apart": [name for name in names if name not in together]}
    return [name for each in chosen or groups for name in groups.get(each, [each])]


def plain(outcome):
    return [DIFFERS.sub("…", text) if isinstance(text, str) else text for text in outcome]


def main():
    ctypes.CDLL(None).prctl(zygote_test.PR_SET_CHILD_SUBREAPER, 1)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        processes = "2" if FULL else "1"
        variables = {"OMP_NUM_THREADS": "1", "FOLDER": folder, "HOME": folder, "PROCESSES": processes}
        script = str(HERE / "standby_cases.py")
        with zygote_test.Zygote([script], pathlib.Path(folder), variables, preload=MODULES) as zygote:
            assert zygote.answer[0] == zygote_test.READY, zygote.answer
            for name in cases(sys.argv[1:]):
                *by_standby, said = zygote.by_standby(CASE=name, RANK="0")
                plainly = zygote.plainly(CASE=name, RANK="0")
                if said is None and plain(by_standby) == plain(plainly):
                    print(f"{name}: the same, exit code {plainly[0]}")
                else:
                    failed.append(name)
                    print(f"{name}: plain {plain(plainly)}\n  standby {plain(by_standby)}, said {said}")
    sys.exit(f"not the same: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
