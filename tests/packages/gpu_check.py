"""What scripts/package gpu-check makes, of the programs that were built: small enough, for every system with glibc 2.34 and
GCC 11's libstdc++, and run in a root that holds nothing but the base of a Debian system, Python and torch: no compiler, no
libraries of this project's, no network, no GPU. There what needs a GPU is skipped by name, and the rest passes.

  gpu_check.py SOURCE_DIR PACKAGES_DIR PROGRAMS_DIR
"""
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

source, packages, programs = (Path(each) for each in sys.argv[1:4])
del sys.argv[1:]

DATA = Path(os.environ.get('DDPRUN_DATA', '/usr/share/datasets/fashion-mnist'))
BYTES_MAX = 60 << 20
NEWEST = {'GLIBC': (2, 34), 'GLIBCXX': (3, 4, 29), 'CXXABI': (1, 3, 13)}
ROOTS_PACKAGES = ['base-files', 'bash', 'coreutils', 'dash', 'grep', 'libc6', 'libc-bin', 'libstdc++6', 'python3', 'sed']

for tool in 'strip', 'objdump', 'dpkg-query', 'ldconfig':
    if shutil.which(tool, path=f'{os.environ["PATH"]}:/usr/sbin:/sbin') is None:
        print(f'skipped: {tool} is not installed')
        sys.exit(77)
if not (DATA / 'train-images-idx3-ubyte.gz').exists():
    print(f'skipped: no Fashion-MNIST in {DATA}; scripts/setup installs it')
    sys.exit(77)
if not (programs.parent / 'lib/libddprun_nccl.so').exists():
    print('skipped: the NCCL part of worker_lib was not built')
    sys.exit(77)
[site] = (source / '.venv/lib').resolve().glob('python3*/site-packages')


def run(*command, **more):
    done = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **more)
    if done.returncode != 0:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}')
    return done.stdout


def installed_closure(names):
    """With all that they depend on, as far as it is installed here."""
    depends = {}
    for line in run('dpkg-query', '-W', '-f', '${Package}|${Pre-Depends}, ${Depends}\n').splitlines():
        name, _, text = line.partition('|')
        depends.setdefault(name, set()).update(re.findall(r'(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)', text))
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name in depends and name not in found:
            found.add(name)
            left += depends[name]
    return sorted(found)


def make_root(root):
    """This system's own files of ROOTS_PACKAGES."""
    for name in 'bin', 'sbin', 'lib', 'lib64':
        (root / 'usr' / name).mkdir(parents=True)
        (root / name).symlink_to(f'usr/{name}')
    for name in 'dev', 'proc', 'tmp', 'site':
        (root / name).mkdir()
    for name in run('dpkg-query', '-L', *installed_closure(ROOTS_PACKAGES)).splitlines():
        path, copy = Path(name), root / name.lstrip('/')
        if name.startswith('/usr/share/') or name.startswith('/etc/') or copy.exists() or copy.is_symlink():
            continue
        if path.is_symlink() or path.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy, follow_symlinks=False)


class GpuCheck(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for old in packages.glob('ddprun-gpu-check-*'):
            old.unlink()
        run(source / 'scripts/package', 'gpu-check',
            env={**os.environ, 'DDPRUN_PACKAGES': str(packages), 'DDPRUN_PROGRAMS': str(programs)})
        [cls.archive] = packages.glob('ddprun-gpu-check-*')
        cls.scratch = tempfile.TemporaryDirectory()
        cls.root = Path(cls.scratch.name) / 'root'
        cls.root.mkdir()
        with tarfile.open(cls.archive) as archive:
            archive.extractall(cls.root)
        cls.folder = cls.root / 'ddprun-gpu-check'
        cls.binaries = [each for each in (cls.folder / 'build').rglob('*')
                        if each.is_file() and each.read_bytes()[:4] == b'\x7fELF']

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_is_small(self):
        size = sum(each.stat().st_size for each in self.folder.rglob('*') if each.is_file())
        print(f'{self.archive.name}: {self.archive.stat().st_size} bytes, unpacked {size}')
        self.assertLessEqual(max(self.archive.stat().st_size, size), BYTES_MAX)

    def test_takes_nothing_from_newer_libraries(self):
        self.assertGreaterEqual(len(self.binaries), 6)
        for binary in self.binaries:
            versions = re.findall(r'\b(GLIBC|GLIBCXX|CXXABI)_([\d.]+)', run('objdump', '-p', binary))
            newer = {f'{kind}_{version}' for kind, version in versions
                     if tuple(map(int, version.split('.'))) > NEWEST[kind]}
            self.assertEqual(newer, set(), f'{binary.name}: define it in worker_lib/older_libraries.cpp')

    def test_does_not_tell_where_it_was_built(self):
        for binary in self.binaries:
            self.assertNotRegex(run('objdump', '-p', binary), rf'R(UN)?PATH.*{re.escape(str(source))}')

    def in_root(self, command, before='', **variables):
        """Without a network but loopback, and as a system that has torch and nothing of this project's."""
        script = f'''
            ip link set lo up
            mount --bind {site} {self.root}/site
            mount -t proc proc {self.root}/proc
            mount -t tmpfs tmpfs {self.root}/dev
            for each in null zero urandom; do
              touch {self.root}/dev/$each; mount --bind /dev/$each {self.root}/dev/$each
            done
            mkdir {self.root}/dev/shm
            {before}
            exec chroot {self.root} /bin/sh -c '{command}'
        '''
        environment = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'PYTHONPATH': '/site', 'HOME': '/tmp', **variables}
        return subprocess.run(['unshare', '--mount', '--net', '--pid', '--fork', '/bin/sh', '-ec', script],
                              env=environment, capture_output=True, text=True, timeout=600)

    def test_runs_where_nothing_of_the_project_is(self):
        if os.geteuid() != 0 or shutil.which('ip') is None:
            self.skipTest('only root can make a root of its own, with iproute2')
        if not (self.root / 'usr').exists():
            make_root(self.root)
        probe = self.in_root('cc --version; cmake --version; ls /usr/lib/x86_64-linux-gnu/libspdlog*')
        self.assertNotEqual(probe.returncode, 0, probe.stdout)

        done = self.in_root('cd /tmp && /ddprun-gpu-check/gpu-check')
        print(done.stdout)
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r'(?m)^machine +seen .*torch \d.*, 0 GPUs$')
        for name in r'test Gpu\.AProgramAloneGoesThroughNccl', 'gpu_smoke', "DDP step on GPUs beside Python's":
            self.assertRegex(done.stdout, rf'(?m)^{name}.* skipped ')
        self.assertRegex(done.stdout, r'(?m)^demo: Fashion-MNIST on the CPU, 2 processes +passed ')
        self.assertNotIn('FAILED', done.stdout)
        self.assertRegex(done.stdout, r'(?m)^gpu-check: passed, as far as it can be seen without a GPU: ')

        older = self.root / 'tmp/older/torch'
        older.mkdir(parents=True)
        (older / '__init__.py').write_text("class version: cuda = None\n__version__ = '2.9.1+cpu'\n")
        driver = self.root / 'tmp/driver/libcuda.so.1'
        driver.parent.mkdir()
        shutil.copy(programs.parent / 'lib/libddprun_fake_cuda.so', driver)
        no_nccl = f'mount -t tmpfs tmpfs {self.root}/site/nvidia/nccl'
        for why, before, variables in (
                ('torch cannot be imported in', '', {'PYTHONPATH': ''}),
                ('the programs were built with torch 2', '', {'PYTHONPATH': '/tmp/older:/site'}),
                ('NCCL is missing in', no_nccl, {}),
                ('the driver is too old: it knows CUDA up to 12.4', '', {'LD_LIBRARY_PATH': '/tmp/driver'})):
            done = self.in_root('/ddprun-gpu-check/gpu-check', before, **variables)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn(why, done.stderr)
            self.assertEqual(done.stderr.count('\n'), 1, done.stderr)
        self.assertEqual(self.in_root('/ddprun-gpu-check/gpu-check --fast').returncode, 2)


if __name__ == '__main__':
    unittest.main()
