"""ddprun and ddpctl run on every system with glibc 2.34 and nothing else.

  portable.py DDPRUN DDPCTL
"""
import re
import subprocess
import sys
import unittest

OLDEST_GLIBC = (2, 34)
OF_GLIBC = {'libc.so.6', 'ld-linux-x86-64.so.2', 'ld-linux-aarch64.so.1'}

programs = [sys.argv.pop(1) for _ in range(2)]


def objdump(*options, program):
    return subprocess.run(['objdump', *options, program], capture_output=True, text=True, check=True).stdout


class Portable(unittest.TestCase):
    def test_take_nothing_from_a_newer_c_library(self):
        for program in programs:
            newer = set()
            for line in objdump('-T', program=program).splitlines():
                version = re.search(r'GLIBC_(\d+)\.(\d+)', line)
                if version and tuple(map(int, version.groups())) > OLDEST_GLIBC:
                    newer.add(line.split()[-1] + ' of ' + version.group())
            self.assertEqual(newer, set(), f'{program}: define it in launcher/older_glibc.cpp')

    def test_take_no_other_library(self):
        for program in programs:
            needed = set(re.findall(r'NEEDED\s+(\S+)', objdump('-p', program=program)))
            self.assertTrue(needed)
            self.assertEqual(needed - OF_GLIBC, set(), program)

    def test_give_other_libraries_nothing_of_their_own(self):
        for program in programs:
            given = [line.split()[-1] for line in objdump('-T', program=program).splitlines()
                     if re.search(r'(_dl_find_object|arc4random)$', line)]
            self.assertEqual(given, [], program)

    def test_have_tls_where_it_is_used(self):
        ddprun, ddpctl = programs
        self.assertRegex(objdump('-t', program=ddprun), r'\bSSL_CTX_new\b')
        self.assertNotRegex(objdump('-t', program=ddpctl), r'\b(SSL|OSSL|OPENSSL|EVP)_\w+')


if __name__ == '__main__':
    unittest.main()
