"""ddprun runs on every system; the programs that it becomes on every one with glibc 2.34 and nothing else; only one of them
has TLS.

  portable.py DDPRUN DDPRUN_DYNAMIC DDPRUN_TLS
"""
import re
import subprocess
import sys
import unittest

OLDEST_GLIBC = (2, 34)
OF_GLIBC = {'libc.so.6', 'ld-linux-x86-64.so.2', 'ld-linux-aarch64.so.1'}

ddprun, ddprun_dynamic, ddprun_tls = (sys.argv.pop(1) for _ in range(3))


def objdump(*options, program):
    return subprocess.run(['objdump', *options, program], capture_output=True, text=True, check=True).stdout


class Portable(unittest.TestCase):
    def test_takes_nothing_from_a_newer_c_library(self):
        for program in ddprun_dynamic, ddprun_tls:
            newer = set()
            for line in objdump('-T', program=program).splitlines():
                version = re.search(r'GLIBC_(\d+)\.(\d+)', line)
                if version and tuple(map(int, version.groups())) > OLDEST_GLIBC:
                    newer.add(line.split()[-1] + ' of ' + version.group())
            self.assertEqual(newer, set(), f'{program}: define it in launcher/older_glibc.cpp')

    def test_takes_no_other_library(self):
        for program in ddprun_dynamic, ddprun_tls:
            needed = set(re.findall(r'NEEDED\s+(\S+)', objdump('-p', program=program)))
            self.assertTrue(needed)
            self.assertEqual(needed - OF_GLIBC, set(), program)

    def test_gives_other_libraries_nothing_of_its_own(self):
        for program in ddprun_dynamic, ddprun_tls:
            given = [line.split()[-1] for line in objdump('-T', program=program).splitlines()
                     if re.search(r'(_dl_find_object|arc4random)$', line)]
            self.assertEqual(given, [], program)

    def test_one_takes_no_library_and_has_no_fixed_address(self):
        headers = objdump('-p', program=ddprun)
        self.assertNotIn('NEEDED', headers)
        self.assertNotIn('INTERP', headers)
        self.assertIn('DYNAMIC', objdump('-f', program=ddprun))
        self.assertNotRegex(objdump('-t', program=ddprun), r'\b(__nss_\w+|getaddrinfo)\b')

    def test_only_one_pays_for_tls(self):
        self.assertRegex(objdump('-t', program=ddprun_tls), r'\bSSL_CTX_new\b')
        for program in ddprun, ddprun_dynamic:
            self.assertNotRegex(objdump('-t', program=program), r'\b(SSL|OSSL|OPENSSL|EVP)_\w+')


if __name__ == '__main__':
    unittest.main()
