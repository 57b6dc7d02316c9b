"""The wheel, made by scripts/package of what is built in and beside PROGRAMS_DIR (with DDPRUN_TEST_FULL=1 built anew): small
enough, installed into a fresh virtual environment where no compiler is, and used there to train in Python.

  wheel_test.py SOURCE_DIR PACKAGES_DIR PROGRAMS_DIR

The Python that runs this has torch; the fresh environment sees that one's packages instead of 4.6 GB of its own. With
DDPRUN_TEST_FULL=1 a second one sees those of scripts/newest_torch.
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
import zipfile
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

BYTES_MAX = 7 << 20
GLIBC_MAX = (2, 28)
FULL = os.environ.get('DDPRUN_TEST_FULL') == '1'

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

UNMODIFIED = '''
import torch, torch.distributed as dist
dist.init_process_group('gloo')
tensor = torch.ones(3)
dist.all_reduce(tensor)
if dist.get_rank() == 0:
    print(dist.group.WORLD._get_backend(torch.device('cpu')).name(), int(tensor[0]))
dist.destroy_process_group()
'''

# A rank dies after its fifth step.
RECOVERABLE = '''
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist
import ddprun
from torch.nn.parallel import DistributedDataParallel as DDP

folder = pathlib.Path(sys.argv[1])
dist.init_process_group('gloo')
torch.manual_seed(0)
line = DDP(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(line.parameters(), lr=0.2)
x = torch.linspace(-1, 1, 64).view(-1, 1)[dist.get_rank()::2]
training = ddprun.recoverable(line, optimizer)
for step in training.steps([x] * 100):
    with step as x:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(line(x), 3 * x - 1).backward()
        optimizer.step()
    if step.number == 5 and dist.get_rank() == 1 and not (folder / 'died').exists():
        while not (folder / 'may-die').exists():
            time.sleep(0.01)
        (folder / 'died').touch()
        os.kill(os.getpid(), signal.SIGKILL)
if dist.get_rank() == 0:
    print(f'{os.path.dirname(ddprun.__file__)} {line.module.weight.item():.2f} {line.module.bias.item():.2f}')
'''


def run(*command, **more):
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout


def pip(there, *arguments, **more):
    """This environment's pip in another one: one of its own takes seconds to install."""
    return run(sys.executable, '-m', 'pip', '--disable-pip-version-check', '--python', there / 'python', *arguments, **more)


def see_packages(bin, folder):
    [there] = (bin.parent / 'lib').glob('python3*/site-packages')
    (there / 'torch_beside.pth').write_text(f'{folder}\n')


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for old in packages.glob('*.whl'):
            old.unlink()
        environment = {**os.environ, 'DDPRUN_PACKAGES': str(packages), 'DDPRUN_PYTHON': sys.executable}
        if not FULL:
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
        see_packages(cls.bin, sysconfig.get_path('purelib'))

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

    def test_python_m_ddprun_and_launch_take_the_program_beside_python(self):
        script = Path(self.folder.name) / 'call.py'
        script.write_text('import ddprun, os, sys\n'
                          'def f():\n    return sys.prefix, os.environ["RANK"]\n'
                          'if __name__ == "__main__":\n    print(ddprun.launch(f, nproc_per_node=2)[1])\n')
        environment = {'PATH': '/usr/bin:/bin', 'HOME': self.folder.name}
        expected = f"('{self.bin.parent}', '1')\n"
        self.assertEqual(run(self.bin / 'python', script, env=environment), expected)
        script.write_text('import os, sys\nif os.environ["RANK"] == "1":\n    print((sys.prefix, os.environ["RANK"]))\n')
        self.assertEqual(run(self.bin / 'python', '-m', 'ddprun', '--nproc-per-node=2', script, env=environment), expected)

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

    def test_has_the_backend_for_each_torch_that_it_names(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = [name for name in wheel.namelist() if name.endswith('.so')]
            description = wheel.read(next(name for name in wheel.namelist() if name.endswith('/METADATA'))).decode()
            versions = sorted(re.fullmatch(r'ddprun/libddprun_torch-([0-9.]+)\.so', name)[1] for name in names)
            for name in names:
                wheel.extract(name, self.folder.name)
                wanted = run('nm', '--dynamic', '--undefined-only', Path(self.folder.name) / name)
                self.assertIn('c10', wanted)
                self.assertNotRegex(wanted, r'\b_?Py[A-Z_]|pybind11')
        said = re.search(r'It is there for torch (.*) and\s+(.*) on x86-64', description).groups()
        self.assertEqual(re.findall(r'^torch_version=(.*)', ''.join(
            (source / 'scripts' / name).read_text() for name in ('setup', 'newest_torch')), re.M), list(said))
        if FULL:
            self.assertEqual(versions, sorted(said))
        else:
            self.assertEqual(versions, [TORCH.split('+')[0]])

    def check_beside_torch(self, bin):
        """An unmodified program over Gloo, and over shm; init_process_group('shm'); a rank that is replaced."""
        with tempfile.TemporaryDirectory() as folder:
            environment = {'PATH': f'{bin}:/usr/bin:/bin', 'HOME': folder, 'OMP_NUM_THREADS': '1', 'DDPRUN_CONTROL_DIR': folder}
            script = Path(folder) / 'script.py'
            for text, variables, expected in (
                    (UNMODIFIED, {}, 'gloo 2\n'), (UNMODIFIED, {'DDPRUN_TORCH_BACKEND': 'shm'}, 'shm 2\n'),
                    (UNMODIFIED.replace("'gloo'", "'shm'").replace('import', 'import ddprun.torch,', 1), {}, 'shm 2\n')):
                script.write_text(text)
                printed = run(bin / 'ddprun', '--nproc-per-node=2', script, timeout=300, env={**environment, **variables})
                self.assertEqual(printed, expected)
            script.write_text(RECOVERABLE)
            with open(Path(folder) / 'said', 'w+') as said:
                job = subprocess.Popen([bin / 'ddprun', '--nproc-per-node=2', '--standby=auto', '--max-restarts=1', '--rdzv-id=job',
                                        script, folder], env=environment, stdout=said, stderr=subprocess.STDOUT)
                self.addCleanup(job.kill)
                while self.standbys(bin, environment) < 2 and job.poll() is None:
                    time.sleep(0.05)
                (Path(folder) / 'may-die').touch()
                code = job.wait(timeout=300)
                said.seek(0)
                text = said.read()
            self.assertEqual(code, 0, text)
            self.assertIn('its standby takes its place', text)
            [there] = (bin.parent / 'lib').glob('python3*/site-packages')
            self.assertIn(f'{there}/ddprun 3.00 -1.00\n', text)

    @staticmethod
    def standbys(bin, environment):
        asked = subprocess.run([bin / 'ddpctl', 'status', '--json', 'job'], env=environment, capture_output=True)
        status = json.loads(asked.stdout)['nodes'][0] if asked.returncode == 0 else {}
        return (status.get('replacement') or {}).get('waiting', 0)

    def test_recovers_and_has_shm_beside_this_torch(self):
        self.check_beside_torch(self.bin)

    @unittest.skipUnless(FULL, 'with DDPRUN_TEST_FULL=1')
    def test_recovers_and_has_shm_beside_the_newest_torch(self):
        [newest] = source.glob('build-newest-torch/venv/lib/python3*/site-packages')
        other = Path(self.folder.name) / 'newest/bin'
        venv.create(other.parent)
        pip(other, 'install', '--no-index', '--no-deps', self.wheel)
        see_packages(other, newest)
        self.check_beside_torch(other)

    @unittest.skipUnless(FULL, 'with DDPRUN_TEST_FULL=1')
    def test_has_shm_under_torchrun(self):
        script = Path(self.folder.name) / 'script.py'
        script.write_text(UNMODIFIED)
        printed = run(self.bin / 'python', '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', script,
                      timeout=300, env={**self.environment, 'PATH': f'{self.bin}:/usr/bin:/bin', 'DDPRUN_TORCH_BACKEND': 'shm'})
        self.assertEqual(printed, 'shm 2\n')

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


@unittest.skipUnless(FULL, 'DDPRUN_TEST_FULL=1 sets up a copy of the sources')
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
