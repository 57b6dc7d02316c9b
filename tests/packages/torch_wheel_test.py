"""The wheel of ddprun.torch, made by scripts/package of what is built beside PROGRAMS_DIR, and the launcher's, which
wheel_test.py has made: installed into a fresh virtual environment, side by side and, with DDPRUN_TEST_FULL=1, alone.

  torch_wheel_test.py SOURCE_DIR PACKAGES_DIR PROGRAMS_DIR LAUNCHER_PACKAGES_DIR

The Python that runs this has torch; the fresh environment sees that one's packages instead of 4.6 GB of its own.
"""
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import venv
from pathlib import Path

try:
    import auditwheel  # noqa: F401
    import scikit_build_core  # noqa: F401
    importlib.metadata.version('torch')  # to import it takes seconds
except ImportError as error:
    print(f'skipped: {error.name} is not in {sys.prefix}; scripts/setup installs it')
    sys.exit(77)

source, packages, programs, launchers = (Path(each) for each in sys.argv[1:5])
del sys.argv[1:]

BYTES_MAX = 1 << 20
FULL = os.environ.get('DDPRUN_TEST_FULL') == '1'

SCRIPT = '''
import torch, torch.distributed as dist
dist.init_process_group('gloo')
tensor = torch.ones(3)
dist.all_reduce(tensor)
if dist.get_rank() == 0:
    print(dist.group.WORLD._get_backend(torch.device('cpu')).name(), int(tensor[0]))
dist.destroy_process_group()
'''


def run(*command, **more):
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout


class TorchWheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        packages.mkdir(parents=True, exist_ok=True)
        for old in packages.glob('*.whl'):
            old.unlink()
        run(source / 'scripts/package', 'torch-wheel',
            env={**os.environ, 'DDPRUN_PACKAGES': str(packages), 'DDPRUN_PYTHON': sys.executable,
                 'DDPRUN_PROGRAMS': str(programs)})
        [cls.wheel] = packages.glob('ddprun_torch-*.whl')
        [cls.launchers] = launchers.glob('ddprun-*.whl')

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.bin = self.folder / 'fresh/bin'
        venv.create(self.bin.parent)
        [there] = (self.bin.parent / 'lib').glob('python3*/site-packages')
        (there / 'torch_beside.pth').write_text(sysconfig.get_path('purelib') + '\n')
        self.environment = {'PATH': f'{self.bin}:/usr/bin:/bin', 'HOME': folder.name,
                            'VIRTUAL_ENV': str(self.bin.parent), 'OMP_NUM_THREADS': '1'}

    def pip(self, *arguments):
        """The outer environment's pip in the fresh one: one of its own takes seconds to install."""
        return run(sys.executable, '-m', 'pip', '--disable-pip-version-check', '--python', self.bin / 'python', *arguments,
                   env=self.environment)

    def python(self, text):
        return run(self.bin / 'python', '-c', text, env=self.environment)

    def test_is_small_and_for_every_python(self):
        print(f'{self.wheel.name}: {self.wheel.stat().st_size} bytes')
        self.assertLessEqual(self.wheel.stat().st_size, BYTES_MAX)
        self.assertRegex(self.wheel.name, r'-py3-none-manylinux_2_\d+_x86_64\.whl$')
        library = programs.parent / 'python/ddprun/torch/libddprun_torch.so'
        wanted = run('nm', '--dynamic', '--undefined-only', library)
        self.assertIn('c10', wanted)
        self.assertNotRegex(wanted, r'\b_?Py[A-Z_]|pybind11')

    def test_side_by_side(self):
        self.pip('install', '--no-index', '--no-deps', self.launchers, self.wheel)
        self.python('import ddprun.torch; from ddprun import progress; progress.report(1, 10)')
        script = self.folder / 'script.py'
        script.write_text(SCRIPT)
        for backend, expected in (('shm', 'shm 2\n'), ('', 'gloo 2\n'))[:2 if FULL else 1]:
            printed = run(self.bin / 'ddprun', '--nproc-per-node=2', script, timeout=300,
                          env={**self.environment, 'DDPRUN_TORCH_BACKEND': backend})
            self.assertEqual(printed, expected)
        self.pip('uninstall', '-y', 'ddprun')
        self.python('import ddprun.torch')

    @unittest.skipUnless(FULL, 'with DDPRUN_TEST_FULL=1')
    def test_alone_under_torchrun(self):
        self.pip('install', '--no-index', '--no-deps', self.wheel)
        script = self.folder / 'script.py'
        script.write_text(SCRIPT)
        printed = run(self.bin / 'python', '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', script,
                      timeout=300, env={**self.environment, 'DDPRUN_TORCH_BACKEND': 'shm'})
        self.assertEqual(printed, 'shm 2\n')
        self.pip('uninstall', '-y', 'ddprun-torch')
        self.assertNotIn('ddprun', self.pip('list'))


if __name__ == '__main__':
    unittest.main()
