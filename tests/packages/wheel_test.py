"""The wheel, made by scripts/package of the programs in PROGRAMS_DIR (with DDPRUN_TEST_FULL=1 built anew): small enough,
installed into a fresh virtual environment where no compiler is, and used there to train in Python.

  wheel_test.py SOURCE_DIR PACKAGES_DIR PROGRAMS_DIR

The Python that runs this has torch; the fresh environment sees that one's packages instead of 4.6 GB of its own.
"""
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import unittest
import venv
from pathlib import Path

try:
    import auditwheel  # noqa: F401
    import scikit_build_core  # noqa: F401
    TORCH = importlib.metadata.version('torch')  # to import it takes seconds
except ImportError as error:
    print(f'skipped: {error.name} is not in {sys.prefix}; scripts/setup installs it')
    sys.exit(77)

source, packages, programs = (Path(each) for each in sys.argv[1:4])
del sys.argv[1:]

BYTES_MAX = 6 << 20
GLIBC_MAX = (2, 28)

SCRIPT = '''
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group('gloo')
torch.manual_seed(0)
line = DDP(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(line.parameters(), lr=0.2)
x = torch.linspace(-1, 1, 64).view(-1, 1)[dist.get_rank()::dist.get_world_size()]
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(line(x), 3 * x - 1).backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f'weight {line.module.weight.item():.2f}, bias {line.module.bias.item():.2f}')
dist.destroy_process_group()
'''


def run(*command, **more):
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout


def pip(there, *arguments, **more):
    """This environment's pip in another one: one of its own takes seconds to install."""
    return run(sys.executable, '-m', 'pip', '--disable-pip-version-check', '--python', there / 'python', *arguments, **more)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for old in packages.glob('*.whl'):
            old.unlink()
        environment = {**os.environ, 'DDPRUN_PACKAGES': str(packages), 'DDPRUN_PYTHON': sys.executable}
        if os.environ.get('DDPRUN_TEST_FULL') != '1':
            environment['DDPRUN_PROGRAMS'] = str(programs)
        run(source / 'scripts/package', 'wheel', env=environment)
        [cls.wheel] = packages.glob('*.whl')

        cls.folder = tempfile.TemporaryDirectory()
        cls.bin = Path(cls.folder.name) / 'fresh/bin'
        venv.create(cls.bin.parent)
        # Nothing but this environment is on PATH: no compiler, no CMake.
        cls.environment = {'PATH': str(cls.bin), 'HOME': cls.folder.name, 'VIRTUAL_ENV': str(cls.bin.parent)}
        began = time.monotonic()
        pip(cls.bin, 'install', '--no-index', '--no-deps', cls.wheel, env=cls.environment)
        cls.version = run(cls.bin / 'ddprun', '--version', env=cls.environment)
        cls.installed_in = time.monotonic() - began
        [packages_there] = (cls.bin.parent / 'lib').glob('python3*/site-packages')
        (packages_there / 'torch_beside.pth').write_text(sysconfig.get_path('purelib') + '\n')

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_is_small_and_for_every_system_with_glibc_2_28(self):
        print(f'{self.wheel.name}: {self.wheel.stat().st_size} bytes, installed and first run in {self.installed_in:.1f} s')
        self.assertLessEqual(self.wheel.stat().st_size, BYTES_MAX)
        tag = re.search(r'-py3-none-manylinux_(\d+)_(\d+)_', self.wheel.name)
        self.assertTrue(tag, self.wheel.name)
        self.assertLessEqual(tuple(map(int, tag.groups())), GLIBC_MAX)

    def test_says_the_one_version(self):
        version = re.search(r'project\(ddprun VERSION ([0-9.]+)', (source / 'CMakeLists.txt').read_text()).group(1)
        self.assertTrue(self.wheel.name.startswith(f'ddprun-{version}-'))
        self.assertRegex(self.version, rf'^ddprun {re.escape(version)} \(.*round protocol \d+\)\n$')
        ddpctl = run(self.bin / 'ddpctl', '--version', env=self.environment)
        self.assertEqual(ddpctl.replace('ddpctl', 'ddprun', 1), self.version)

    def test_trains_with_the_python_beside_it(self):
        script = Path(self.folder.name) / 'train.py'
        script.write_text(SCRIPT)
        # Called by its path, and the environment is not active.
        environment = {'PATH': '/usr/bin:/bin', 'HOME': self.folder.name}
        printed = run(self.bin / 'ddprun', '--nproc-per-node=2', script, env=environment, timeout=300)
        self.assertEqual(printed, 'weight 3.00, bias -1.00\n')

    def test_doctor_makes_an_all_reduce_with_that_torch(self):
        done = subprocess.run([self.bin / 'ddpctl', 'doctor', '--json', '--timeout=120'], env=self.environment,
                              capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        checks = {check['name']: check for check in json.loads(done.stdout)['checks']}
        self.assertEqual(checks['all-reduce']['verdict'], 'ok', checks)
        self.assertIn(TORCH.split('+')[0], checks['all-reduce']['what'])
        self.assertEqual(checks['ddprun']['verdict'], 'ok', checks)

    def test_brings_the_module_for_workers(self):
        run(self.bin / 'python', '-c', 'from ddprun import progress; progress.report(1, 10, loss=0.5)',
            env=self.environment)

    def test_brings_manual_and_completions(self):
        for name in 'man/man1/ddprun.1.gz', 'man/man1/ddpctl.1.gz', 'bash-completion/completions/ddprun':
            self.assertTrue((self.bin.parent / 'share' / name).exists(), name)

    def test_is_removed_without_a_trace(self):
        other = Path(self.folder.name) / 'other'
        venv.create(other)
        files = lambda: {each for each in other.rglob('*') if each.is_file() and '__pycache__' not in each.parts}
        before = files()
        pip(other / 'bin', 'install', '--no-index', '--no-deps', self.wheel)
        self.assertIn(other / 'bin/ddpctl', files())
        pip(other / 'bin', 'uninstall', '-y', 'ddprun')
        self.assertEqual(files(), before)


@unittest.skipIf(os.environ.get('DDPRUN_TEST_FULL') != '1', 'DDPRUN_TEST_FULL=1 sets up a copy of the sources')
class FreshClone(unittest.TestCase):
    """What setting up needs comes from where this machine's pip takes it."""

    def test_one_command_makes_the_wheel(self):
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / 'clone'
            shutil.copytree(source, clone,
                            ignore=shutil.ignore_patterns('build', 'build-*', '.git', '.venv', 'data', '__pycache__'))
            environment = {**os.environ, 'DDPRUN_PROGRAMS': str(programs), 'DDPRUN_COMMIT': '0123456789ab'}
            for variable in 'DDPRUN_PYTHON', 'DDPRUN_PACKAGES':
                environment.pop(variable, None)
            for is_first in True, False:
                done = subprocess.run([clone / 'scripts/package', 'wheel'], env=environment, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len(list((clone / 'build-packages').glob('ddprun-*.whl'))), 1)
                self.assertEqual('installing into .venv' in done.stderr, is_first, done.stderr)


if __name__ == '__main__':
    unittest.main()
