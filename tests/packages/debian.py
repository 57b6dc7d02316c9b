"""Debian's packages: what is in them, made of the programs in PROGRAMS_DIR. With DDPRUN_TEST_FULL=1, as root: built anew,
installed into a clean root made by debootstrap, used there, and removed again. What is downloaded comes from where this
machine's own apt takes it.

  debian.py SOURCE_DIR PACKAGES_DIR PROGRAMS_DIR
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

for tool in 'dpkg-deb', 'dpkg-shlibdeps':
    if shutil.which(tool) is None:
        print(f'skipped: {tool} is not installed; scripts/setup does that')
        sys.exit(77)

source, packages, programs = (Path(each) for each in sys.argv[1:4])
VERSION = re.search(r'project\(ddprun VERSION ([0-9.]+)', (source / 'CMakeLists.txt').read_text()).group(1)
del sys.argv[1:]
IS_FULL = os.environ.get('DDPRUN_TEST_FULL') == '1'
SUITE = 'bookworm'


def run(*command, **more):
    done = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **more)
    if done.returncode != 0:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}')
    return done.stdout


def make(kind):
    """The .deb, made anew."""
    for old in packages.glob(f'{kind}_*.deb'):
        old.unlink()
    environment = {**os.environ, 'DDPRUN_PACKAGES': str(packages)}
    if not IS_FULL:
        environment['DDPRUN_PROGRAMS'] = str(programs)
    run(source / 'scripts/package', kind, env=environment)
    [made] = packages.glob(f'{kind}_*.deb')
    return made


def files_in(package):
    listing = run('dpkg-deb', '--contents', package).splitlines()
    return {line.split()[5].removeprefix('.'): line for line in listing if not line.startswith('d')}


def field(package, name):
    return run('dpkg-deb', '--field', package, name).strip()


class Contents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ddprun = make('ddprun')

    def test_programs_manuals_completions_and_unit(self):
        files = files_in(self.ddprun)
        for name in ('/usr/bin/ddprun', '/usr/bin/ddpctl',
                     '/usr/share/man/man1/ddprun.1.gz', '/usr/share/man/man1/ddpctl.1.gz',
                     '/usr/share/bash-completion/completions/ddprun', '/usr/share/zsh/site-functions/_ddprun',
                     '/usr/share/fish/vendor_completions.d/ddprun.fish',
                     '/usr/lib/systemd/system/ddprun@.service', '/usr/share/doc/ddprun/copyright'):
            self.assertIn(name, files)
        self.assertEqual([name for name in files if not name.startswith('/usr/')], [])
        for name, line in files.items():
            self.assertEqual(line.split()[1], 'root/root', name)

    def test_needs_the_c_library_alone(self):
        needed = [each.split()[0] for each in field(self.ddprun, 'Depends').split(',')]
        self.assertEqual([each for each in needed if each not in ('libc6', 'libm6')], [])

    def test_unit_starts_the_program_that_is_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            run('dpkg-deb', '--extract', self.ddprun, folder)
            unit = (Path(folder) / 'usr/lib/systemd/system/ddprun@.service').read_text()
        self.assertRegex(unit, r'(?m)^ExecStart=/usr/bin/ddprun \$PROGRAM$')
        self.assertNotIn('/usr/local', unit)

    def test_its_python_package_is_there_in_a_virtual_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            run('dpkg-deb', '--extract', self.ddprun, folder)
            run(sys.executable, '-m', 'venv', '--without-pip', folder / 'venv')
            script = folder / 'train.py'
            script.write_text('import sys, ddprun.progress\nddprun.progress.report(1, 2)\n'
                              'print(sys.prefix, ddprun.__version__)\n')
            environment = {'PATH': f'{folder}/venv/bin:/usr/bin:/bin', 'VIRTUAL_ENV': str(folder / 'venv')}
            begin = [folder / 'usr/bin/ddprun', script]
            self.assertEqual(run(*begin, env=environment), f'{folder}/venv {VERSION}\n')
            # Another version, installed there by the user.
            [site] = (folder / 'venv/lib').glob('python3*/site-packages')
            shutil.copytree(source / 'worker_lib/python/ddprun', site / 'ddprun')
            with (site / 'ddprun/__init__.py').open('a') as package:
                package.write('__version__ = "of the user"\n')
            self.assertEqual(run(*begin, env=environment), f'{folder}/venv of the user\n')

    def test_version_is_the_one(self):
        self.assertEqual(field(self.ddprun, 'Version'), VERSION + '-1')


def own_mirror():
    """Where this machine's apt takes SUITE's main section from."""
    targets = run('apt-get', 'indextargets', '--format', '$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(CREATED_BY)')
    for line in targets.splitlines():
        uri, release, component, kind = line.split('|')
        if (release, component, kind) == (SUITE, 'main', 'Packages'):
            return uri
    return None


class Root:
    """A fresh system below a folder, with this machine's /proc and its torch to look at."""

    def __init__(self, mirror):
        self.folder = Path(tempfile.mkdtemp(prefix='ddprun-root-'))
        self.mounted = []
        began = time.monotonic()
        proxy = {}
        for line in run('apt-config', 'dump', 'Acquire').splitlines():
            found = re.match(r'Acquire::(https?)::Proxy "(.+)";', line)
            if found:
                proxy[found.group(1) + '_proxy'] = found.group(2)
        run('debootstrap', '--variant=minbase', SUITE, self.folder, mirror, env={**os.environ, **proxy})
        print(f'debootstrap took {time.monotonic() - began:.0f} s')
        # Its apt asks as ours does: proxies, certificates, whatever else is configured.
        for place in '/etc/apt', '/etc/ssl', '/usr/local/share/ca-certificates', '/usr/share/ca-certificates':
            if Path(place).exists():
                shutil.copytree(place, self.folder / place.lstrip('/'), dirs_exist_ok=True, symlinks=True)
        for list_file in (self.folder / 'etc/apt/sources.list.d').glob('*'):
            list_file.unlink()
        (self.folder / 'etc/apt/sources.list').write_text(f'deb {mirror} {SUITE} main\n')
        for file in '/etc/resolv.conf', '/etc/hosts':
            shutil.copy(file, str(self.folder) + file)
        self.mount('-t', 'proc', 'proc', to='proc')
        self.mount('-t', 'tmpfs', 'tmpfs', to='dev/shm')

    def mount(self, *what, to):
        place = self.folder / to
        place.mkdir(parents=True, exist_ok=True)
        run('mount', *what, place)
        self.mounted.append(place)

    def run(self, *command, **variables):
        environment = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C.UTF-8', 'HOME': '/root',
                       'DEBIAN_FRONTEND': 'noninteractive', **variables}
        return run('chroot', self.folder, *command, env=environment)

    def files(self):
        # What packages bring and take away; not what apt remembers of it.
        found = self.run('find', '/usr', '/etc', '/lib', '/opt', '-xdev', '-not', '-type', 'd').splitlines()
        return {each for each in found if '/etc/ld.so.cache' not in each and '__pycache__' not in each}

    def close(self):
        for place in reversed(self.mounted):
            subprocess.run(['umount', '--lazy', place], check=False)
        # Never into what is still mounted.
        shutil.rmtree(self.folder) if not any(os.path.ismount(each) for each in self.mounted) else None


def why_not_installed():
    if not IS_FULL:
        return 'DDPRUN_TEST_FULL=1 installs them into a root made by debootstrap'
    if os.geteuid() != 0:
        return 'a root of its own needs root'
    if shutil.which('debootstrap') is None:
        return 'debootstrap is not installed; scripts/setup does that'
    if own_mirror() is None:
        return f'apt here has no {SUITE} to make a root of'
    return None


@unittest.skipIf(why_not_installed() is not None, why_not_installed())
class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        [cls.ddprun] = packages.glob('ddprun_*.deb') or [make('ddprun')]
        cls.development = make('libddprun-dev')
        cls.root = Root(own_mirror())
        cls.addClassCleanup(cls.root.close)
        cls.root.run('apt-get', '-q', 'update')
        for each in cls.ddprun, cls.development:
            shutil.copy(each, cls.root.folder / 'root')

    def apt(self, *arguments):
        return self.root.run('apt-get', '-q', '-y', '--no-install-recommends', *arguments)

    def test_1_ddprun_is_installed_used_and_removed(self):
        before = self.root.files()
        self.apt('install', f'/root/{self.ddprun.name}')
        self.assertRegex(self.root.run('ddprun', '--version'), r'^ddprun [0-9.]+ \(')
        said = self.root.run('ddprun', '--nproc-per-node=2', 'sh', '-c', 'echo rank $RANK of $WORLD_SIZE')
        self.assertEqual(sorted(said.splitlines()), ['rank 0 of 2', 'rank 1 of 2'])
        self.assertIn('Usage', self.root.run('ddpctl', '--help'))
        completed = self.root.run('bash', '-c', '. /usr/share/bash-completion/completions/ddprun && complete -p ddprun')
        self.assertIn('ddprun', completed)
        self.apt('purge', 'ddprun')
        self.assertEqual(self.root.files() - before, set())

    def test_2_libddprun_dev_builds_a_program_that_trains(self):
        torch = Path(os.environ.get('DDPRUN_TORCH_DIR') or
                     next((source / '.venv/lib').resolve().glob('python3*/site-packages/torch')))
        # Its libraries find each other by places relative to the folder of all packages.
        self.root.mount('--bind', '-o', 'ro', torch.parent, to='opt/torch')
        self.apt('install', 'cmake', 'g++', 'ninja-build')
        before = self.root.files()
        self.apt('install', f'/root/{self.ddprun.name}', f'/root/{self.development.name}')
        shutil.copytree(source / 'tests/compat/consumer', self.root.folder / 'root/consumer', dirs_exist_ok=True)
        self.root.run('cmake', '-S', '/root/consumer', '-B', '/root/built', '-G', 'Ninja', '-DCMAKE_BUILD_TYPE=Release',
                      '-DDDPRUN_TORCH_DIR=/opt/torch/torch')
        self.root.run('cmake', '--build', '/root/built')
        said = self.root.run('ddprun', '--nproc-per-node=2', '/root/built/my_training')
        self.assertIn('weight 3.000, bias -1.000', said)
        self.apt('purge', 'ddprun', 'libddprun-dev')
        self.apt('autoremove', '--purge')
        self.assertEqual({each for each in self.root.files() - before if 'ddprun' in each}, set())


if __name__ == '__main__':
    unittest.main(verbosity=2)
