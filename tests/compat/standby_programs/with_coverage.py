import coverage
import torch


def used(number):
    return number + 1


def unused(number):
    return number - 1


print(used(1), torch.__name__)
measured = coverage.Coverage.current()
measured.stop()
print(sorted(measured.get_data().lines(__file__)))

import said
said.end()
