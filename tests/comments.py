"""scripts/comments in a repository of its own: it finds what was planted in changed lines, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

BEFORE = {
    "old.h": "// Who reads this is a process.\nint a;\n",
    "moved.py": "# nobody reads this\n" + "".join(f"a{i} = {i}\n" for i in range(20)),
}
AFTER = {
    "old.h": "// Who reads this is a process.\nint b;  // Those of the workers.\n",
    "a.cpp": '// A rank\n// who waits.\nint a;\n/* It is\n   another one. */\nchar s[] = "// nobody";\n'
    'auto r = R"(// who)";\nint x = 1\'000;  // of all ranks\n// A user who reads,\n// as a user\n// who writes, may.\n'
    "// A rank and those\n// Of the others.\n",
    "b.py": '"""Of a module."""\na = "# nobody"  # nobody waits\nb = """\n# who\n"""\n',
    "script": "#!/bin/bash\necho '# who' \"$#\" # Who calls this\n",
    "CMakeLists.txt": "# Those files\nset(a b)\n",
    "README.md": "# Who\n\nnobody\n",
    "data": "# who\n",
}
EXPECTED = """CMakeLists.txt:1: the comment begins with "Those": Those files
a.cpp:2: the comment says "who": who waits.
a.cpp:5: the comment says "another one": another one.
a.cpp:8: the comment begins with "of": of all ranks
b.py:1: the comment begins with "Of": Of a module.
b.py:2: the comment says "nobody": nobody waits
old.h:2: the comment begins with "Those": Those of the workers.
script:2: the comment says "Who": Who calls this
"""


def git(*arguments):
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, stdout=subprocess.DEVNULL)


def findings(*arguments):
    done = subprocess.run([ROOT / "scripts/comments", *arguments], cwd=root, capture_output=True, text=True)
    return done.returncode, done.stdout


def write(files):
    for name, text in files.items():
        (root / name).write_text(text)
    git("add", "-A")


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    git("init", "-q", "-b", "main")
    write(BEFORE)
    git("commit", "-q", "-m", "before")
    assert findings() == (0, "comments: clean\n"), findings()  # nothing to compare with: no line has changed

    write(AFTER)
    git("mv", "moved.py", "here.py")
    assert findings() == (1, EXPECTED), findings()  # before the commit
    git("commit", "-q", "-m", "after")
    assert findings() == (1, EXPECTED), findings()  # the last commit

    git("checkout", "-q", "--track", "-b", "topic")
    for name in ("one", "two"):
        write({f"{name}.h": f"// {name} who\n"})
        git("commit", "-q", "-m", name)
    both = 'one.h:1: the comment says "who": one who\ntwo.h:1: the comment says "who": two who\n'
    assert findings() == (1, both), findings()  # since the branch left its upstream
    assert findings("HEAD~") == (1, both[both.index("two") :]), findings("HEAD~")
    (root / "one.h").unlink()
    (root / "two.h").write_text("// two\n")
    assert findings() == (0, "comments: clean\n"), findings()
    assert findings("nothing")[0] == 1
