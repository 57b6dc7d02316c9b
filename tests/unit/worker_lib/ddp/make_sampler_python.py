"""Writes sampler_python.txt: what torch.utils.data.DistributedSampler gives, for DistributedSampler's test.

One line per case: size world rank seed epoch shuffle drop_last : indices. Large sets are recorded by their
length and a checksum: size world rank seed epoch shuffle drop_last # length checksum. Every small case is
recorded by those of all its ranks' indices, one rank after the other, with = in place of #.
"""

import itertools

from torch.utils.data.distributed import DistributedSampler


def checksum(indices):
    value = 0
    for index in indices:
        value = (value * 1000003 + index) % 2**64
    return value


def main():
    small = itertools.product([1, 2, 7, 12, 23], [1, 2, 3, 5], [(0, 0), (1, 0), (1, 3)], [True, False], [False, True])
    for size, world, (seed, epoch), shuffle, drop_last in small:
        if drop_last and size < world:
            continue
        for rank in range(world):
            sampler = DistributedSampler(range(size), world, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
            sampler.set_epoch(epoch)
            print(size, world, rank, seed, epoch, int(shuffle), int(drop_last), ":", *sampler)
    for size, world, rank, seed, epoch in [(60000, 2, 1, 1, 0), (60000, 7, 6, 1, 4), (100003, 8, 3, 2**40, 9)]:
        sampler = DistributedSampler(range(size), world, rank, seed=seed)
        sampler.set_epoch(epoch)
        indices = list(sampler)
        print(size, world, rank, seed, epoch, 1, 0, "#", len(indices), checksum(indices))
    every_small = itertools.product(range(1, 18), range(1, 10), [True, False], [False, True])
    for size, world, shuffle, drop_last in every_small:
        if drop_last and size < world:
            continue  # no rank has a sample: DistributedSampler refuses that
        indices = []
        for rank in range(world):
            sampler = DistributedSampler(range(size), world, rank, shuffle=shuffle, seed=2, drop_last=drop_last)
            sampler.set_epoch(5)
            indices += list(sampler)
        print(size, world, 0, 2, 5, int(shuffle), int(drop_last), "=", len(indices), checksum(indices))


main()
