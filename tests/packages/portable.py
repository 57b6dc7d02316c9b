"""The program runs on every system with glibc 2.34 and nothing else.

  portable.py DDPRUN
"""
import re
import subprocess
import sys
import unittest

OLDEST_GLIBC = (2, 34)
OF_GLIBC = {'libc.so.6', 'ld-linux-x86-64.so.2', 'ld-linux-aarch64.so.1'}

ddprun = sys.argv.pop(1)


def objdump(*options):
    return subprocess.run(['objdump', *options, ddprun], capture_output=True, text=True, check=True).stdout


class Portable(unittest.TestCase):
    def test_takes_nothing_from_a_newer_c_library(self):
        newer = set()
        for line in objdump('-T').splitlines():
            version = re.search(r'GLIBC_(\d+)\.(\d+)', line)
            if version and tuple(map(int, version.groups())) > OLDEST_GLIBC:
                newer.add(line.split()[-1] + ' of ' + version.group())
        self.assertEqual(newer, set(), 'define it in launcher/older_glibc.cpp')

    def test_takes_no_other_library(self):
        needed = set(re.findall(r'NEEDED\s+(\S+)', objdump('-p')))
        self.assertTrue(needed)
        self.assertEqual(needed - OF_GLIBC, set())

    def test_gives_other_libraries_nothing_of_its_own(self):
        given = [line.split()[-1] for line in objdump('-T').splitlines()
                 if re.search(r'(_dl_find_object|arc4random)$', line)]
        self.assertEqual(given, [])


if __name__ == '__main__':
    unittest.main()
