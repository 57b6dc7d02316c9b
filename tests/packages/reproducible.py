"""The same sources, built twice in different folders at different times, give packages of the same bytes.

  reproducible.py SOURCE_DIR

Compiles everything twice without a cache, libddprun-dev (worker_lib) too: only with DDPRUN_TEST_FULL=1. Needs no
repository; what --version says as the commit is given.
"""
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

if os.environ.get('DDPRUN_TEST_FULL') != '1':
    print('skipped: it compiles everything twice; DDPRUN_TEST_FULL=1 runs it')
    sys.exit(77)
source = Path(sys.argv[1])
kinds = sys.argv[2:] or ['wheel', 'ddprun', 'libddprun-dev']
LEFT_OUT = shutil.ignore_patterns('build', 'build-*', '.git', '.venv', 'data', '__pycache__')


def packages(folder):
    shutil.copytree(source, folder, ignore=LEFT_OUT)
    (folder / '.venv').symlink_to((source / '.venv').resolve())
    # ccache would give the second build what the first made.
    environment = {**os.environ, 'CCACHE_DISABLE': '1', 'DDPRUN_COMMIT': '0123456789ab',
                   'DDPRUN_PACKAGES': str(folder / 'build-packages'), 'SOURCE_DATE_EPOCH': '1767225600',
                   'DDPRUN_PYTHON': str(source / '.venv/bin/python')}
    subprocess.run([folder / 'scripts/package', *kinds], env=environment, check=True, stdout=subprocess.DEVNULL)
    made = {each.name: each for each in (folder / 'build-packages').iterdir() if each.suffix in ('.whl', '.deb')}
    assert len(made) == len(kinds), made
    return made


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def content(path):
    """What lies in a package, by name: where to look when two differ."""
    if path.suffix == '.whl':
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    packed = subprocess.run(['dpkg-deb', '--fsys-tarfile', path], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        return {each.name: files.extractfile(each).read() for each in files if each.isfile()}


with tempfile.TemporaryDirectory() as scratch:
    first = packages(Path(scratch) / 'here')
    second = packages(Path(scratch) / 'in' / 'another' / 'and' / 'longer' / 'place')
    assert first.keys() == second.keys(), (first.keys(), second.keys())
    differing = []
    for name, path in sorted(first.items()):
        same = digest(path) == digest(second[name])
        print(name, digest(path) if same else 'DIFFERS')
        if not same:
            differing.append(name)
            one, other = content(path), content(second[name])
            for file in sorted(one.keys() | other.keys()):
                if one.get(file) != other.get(file):
                    print('   ', file)
    sys.exit(1 if differing else 0)
