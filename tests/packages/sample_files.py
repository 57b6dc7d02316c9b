"""The files that users copy or that an editor reads: the workflow for a machine with GPUs, VS Code's launch.json.

  sample_files.py SOURCE_DIR BINARY_DIR
"""
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    print('skipped: no PyYAML here; scripts/setup installs python3-yaml')
    sys.exit(77)

source, binary = Path(sys.argv[1]), Path(sys.argv[2])
del sys.argv[1:]

WORKFLOW = source / 'scripts/ci/gpu_host.yml'


def targets():
    """The programs that CMake builds."""
    names = set()
    for lists in source.glob('**/CMakeLists.txt'):
        if not lists.relative_to(source).parts[0].startswith(('build', '.')):
            names.update(re.findall(r'(?:add_executable|ddprun_add_program)\((\w+)', lists.read_text()))
            for block in re.findall(r'set\(examples\s([^)]*)\)', lists.read_text()):
                names.update(block.split())
    return names


class Workflow(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = WORKFLOW.read_text()
        cls.steps = yaml.safe_load(cls.text)['jobs']['gpu']['steps']
        cls.scripts = [step['run'] for step in cls.steps if 'run' in step]

    def script_with(self, text):
        [script] = [each for each in self.scripts if text in each]
        return script

    def test_scripts_are_bash(self):
        for script in self.scripts:
            subprocess.run(['bash', '-n', '-c', script], check=True)

    def test_commands_exist(self):
        named = set(re.findall(r'(?:^|\s)((?:scripts|build/bin)/\w+)', '\n'.join(self.scripts)))
        self.assertIn('scripts/gpu_smoke', named)
        for command in named:
            if command.startswith('build/bin/'):
                self.assertIn(command.removeprefix('build/bin/'), targets())
            else:
                self.assertTrue((source / command).is_file(), command)

    def test_label_selects_a_test(self):
        self.assertIn('--label-regex gpu', self.script_with('ctest'))
        self.assertRegex((source / 'tests/integration/CMakeLists.txt').read_text(), r'LABELS "integration;gpu"')

    def codes(self):
        return {int(code) for code in re.findall(r'(?m)^#   (\d+)\s', self.text)}

    def test_codes_are_those_of_the_programs(self):
        header = (source / 'rendezvous/common/exit_codes.h').read_text()
        smoke = (source / 'worker_lib/examples/gpu_smoke.cpp').read_text()
        own = {int(code) for code in re.findall(r'kExit\w+ = (\d+);', header)}
        of_smoke = {int(code) for code in re.findall(r'constexpr int k\w+ = (\d+);', smoke)}
        self.assertEqual(self.codes() - own - of_smoke, set())
        self.assertLessEqual(of_smoke, self.codes())

    def test_each_code_passes_through_but_a_skip_fails(self):
        script = self.script_with('gpu_smoke')
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / 'scripts/gpu_smoke'
            program.parent.mkdir()
            for code in self.codes() | {134, 137, 139}:
                program.write_text(f'#!/bin/sh\nexit {code}\n')
                program.chmod(0o755)
                # As the runner calls it.
                done = subprocess.run(['bash', '-e', '-o', 'pipefail', '-c', script], cwd=folder, capture_output=True)
                self.assertEqual(done.returncode, 1 if code == 77 else code)


class LaunchJson(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = (source / '.vscode/launch.json').read_text()
        cls.launch = json.loads(re.sub(r'(?m)^\s*//.*$', '', text))

    def test_names_programs_that_are_built_where_it_says(self):
        folders = {preset['binaryDir'] for preset in json.loads((source / 'CMakePresets.json').read_text())
                   ['configurePresets'] if 'binaryDir' in preset}
        text = json.dumps(self.launch)
        named = set(re.findall(r'\$\{workspaceFolder\}/(build[\w-]*)/bin/(\w+)', text))
        self.assertTrue(named)
        for folder, program in named:
            self.assertIn('${sourceDir}/' + folder, folders)
            self.assertIn(program, targets())

    def test_inputs_are_defined(self):
        inputs = {each['id'] for each in self.launch['inputs']}
        self.assertEqual(set(re.findall(r'\$\{input:(\w+)\}', json.dumps(self.launch['configurations']))), inputs)

    def test_options_are_ddpruns(self):
        program = binary / 'bin/ddprun'
        known = subprocess.run([program, '--help'], capture_output=True, text=True, check=True).stdout
        text = (source / '.vscode/launch.json').read_text()
        for option in set(re.findall(r'--[a-z][a-z-]+(?==)', text)):
            self.assertIn(option, known)


if __name__ == '__main__':
    unittest.main()
