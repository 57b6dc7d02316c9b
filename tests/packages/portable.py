"""The programs run on every system with glibc 2.34 and nothing else; only one of them has TLS.

  portable.py DDPRUN DDPRUN_TLS
"""
import re
import subprocess
import sys
import unittest

OLDEST_GLIBC = (2, 34)
OF_GLIBC = {'libc.so.6', 'ld-linux-x86-64.so.2', 'ld-linux-aarch64.so.1'}

ddprun, ddprun_tls = sys.argv.pop(1), sys.argv.pop(1)


def objdump(*options, program):
    return subprocess.run(['objdump', *options, program], capture_output=True, text=True, check=True).stdout


class Portable(unittest.TestCase):
    def test_takes_nothing_from_a_newer_c_library(self):
        for program in ddprun, ddprun_tls:
            newer = set()
            for line in objdump('-T', program=program).splitlines():
                version = re.search(r'GLIBC_(\d+)\.(\d+)', line)
                if version and tuple(map(int, version.groups())) > OLDEST_GLIBC:
                    newer.add(line.split()[-1] + ' of ' + version.group())
            self.assertEqual(newer, set(), f'{program}: define it in launcher/older_glibc.cpp')

    def test_takes_no_other_library(self):
        for program in ddprun, ddprun_tls:
            needed = set(re.findall(r'NEEDED\s+(\S+)', objdump('-p', program=program)))
            self.assertTrue(needed)
            self.assertEqual(needed - OF_GLIBC, set(), program)

    def test_gives_other_libraries_nothing_of_its_own(self):
        for program in ddprun, ddprun_tls:
            given = [line.split()[-1] for line in objdump('-T', program=program).splitlines()
                     if re.search(r'(_dl_find_object|arc4random)$', line)]
            self.assertEqual(given, [], program)

    def test_only_one_pays_for_tls(self):
        self.assertRegex(objdump('-t', program=ddprun_tls), r'\bSSL_CTX_new\b')
        self.assertNotRegex(objdump('-t', program=ddprun), r'\b(SSL|OSSL|OPENSSL|EVP)_\w+')


if __name__ == '__main__':
    unittest.main()
