"""ddprun, ddpctl and the libraries that a program of Python loads run on every system with glibc 2.28, and need nothing else;
ddprun.torch's needs the C++ library that PyTorch's wheels need, GCC 8's.

  portable.py DDPRUN DDPCTL LIBRARY… [TORCH_LIBRARY]
"""
import re
import subprocess
import sys
import unittest

OLDEST_GLIBC = (2, 28)
OLDEST_RUNTIME = {'GLIBC': OLDEST_GLIBC, 'GLIBCXX': (3, 4, 22), 'CXXABI': (1, 3, 11)}  # as PyTorch's wheels
OF_GLIBC = {'libc.so.6', 'libdl.so.2', 'libpthread.so.0', 'ld-linux-x86-64.so.2', 'ld-linux-aarch64.so.1'}

files = sys.argv[1:]
del sys.argv[1:]
programs = files[:2]
with_torch = [each for each in files if 'torch' in each.rpartition('/')[2]]
alone = [each for each in files if each not in with_torch]


def objdump(*options, program):
    return subprocess.run(['objdump', *options, program], capture_output=True, text=True, check=True).stdout


class Portable(unittest.TestCase):
    def test_take_nothing_from_a_newer_c_library(self):
        for program in files:
            newer = set()
            for line in objdump('-T', program=program).splitlines():
                version = re.search(r'(GLIBC|GLIBCXX|CXXABI)_([\d.]+)', line)
                if version and tuple(map(int, version[2].split('.'))) > OLDEST_RUNTIME[version[1]]:
                    newer.add(line.split()[-1] + ' of ' + version.group())
            self.assertEqual(newer, set(), f'{program}: define it in rendezvous/common/older_glibc or worker_lib/older_libraries.cpp')

    def test_take_no_other_library(self):
        for program in alone:
            needed = set(re.findall(r'NEEDED\s+(\S+)', objdump('-p', program=program)))
            self.assertTrue(needed)
            self.assertEqual(needed - OF_GLIBC, set(), program)

    def test_give_other_libraries_nothing_of_their_own(self):
        for program in files:
            given = [line.split()[-1] for line in objdump('-T', program=program).splitlines()
                     if '*UND*' not in line and re.search(r'( (_dl_find_object|arc4random|pthread_\w+|dl\w+|stat|__libc_start_main)|_ZNKSt.*|_ZSt.*)$', line)]
            self.assertEqual(given, [], program)

    def test_have_tls_where_it_is_used(self):
        ddprun, ddpctl = programs
        self.assertRegex(objdump('-t', program=ddprun), r'\bSSL_CTX_new\b')
        self.assertNotRegex(objdump('-t', program=ddpctl), r'\b(SSL|OSSL|OPENSSL|EVP)_\w+')


if __name__ == '__main__':
    unittest.main()
