"""scripts/rooms on this project, where it finds nothing, and on copies where something is wrong."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOM = pathlib.Path("agent/text")


def findings(root):
    done = subprocess.run([sys.executable, root / "scripts/rooms"], stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def copy_of_the_sources(folder):
    for name in ("agent", "launcher", "rendezvous"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/rooms", folder / "scripts")
    return folder


def edit(file, old, new):
    text = file.read_text()
    assert old in text, f"{file} does not say {old}"
    file.write_text(text.replace(old, new, 1))


def include_upwards(root):
    edit(root / ROOM / "json_text.h", "#pragma once\n", '#pragma once\n#include "agent/output/console.h"\n')


def include_what_is_not_there(root):
    edit(root / ROOM / "json_text.h", "#pragma once\n", '#pragma once\n#include "agent/text/nothing.h"\n')


def name_what_is_not_used(root):
    edit(root / ROOM / "CMakeLists.txt", "USES ", "USES rendezvous/net ")


def close_a_cycle(root):
    include_upwards(root)
    edit(root / ROOM / "CMakeLists.txt", "USES ", "USES agent/output ")
    edit(root / "agent/output/stream.h", "#pragma once\n", '#pragma once\n#include "agent/text/json_text.h"\n')
    edit(root / "agent/output/CMakeLists.txt", "USES ", "USES agent/text ")


def put_a_file_in_no_room(root):
    (root / "agent/attic").mkdir()
    (root / "agent/attic/old.h").write_text('#include "agent/job.h"\n')


PLANTED = {
    include_upwards: "does not say USES agent/output",
    include_what_is_not_there: "there is no agent/text/nothing.h",
    name_what_is_not_used: "uses rendezvous/net, and nothing there includes it",
    close_a_cycle: "agent/text is in a cycle",
    put_a_file_in_no_room: "agent/attic/old.h is in no room",
}

code, said = findings(ROOT)
assert code == 0, said
for plant, expected in PLANTED.items():
    with tempfile.TemporaryDirectory() as name:
        root = copy_of_the_sources(pathlib.Path(name))
        plant(root)
        code, said = findings(root)
        assert code == 1 and expected in said, f"{plant.__name__}: {code}\n{said}"
print(f"{len(PLANTED)} planted faults found")
