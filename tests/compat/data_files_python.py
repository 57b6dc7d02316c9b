"""worker_lib reads the .npy files that NumPy writes and the CSV files that Python's csv writes; NumPy reads ours.

usage: data_files_python.py DATA_FILES_PROBE
"""

import csv
import itertools
import os
import random
import subprocess
import sys
import tempfile

import numpy

TYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
SHAPES = [(), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5)]


def check_npy(probe, folder):
    generator = numpy.random.default_rng(1)
    given, returned = os.path.join(folder, "in.npy"), os.path.join(folder, "out.npy")
    cases = 0
    for kind, endian, order, shape, version in itertools.product(
            TYPES, "<>", "CF", SHAPES, [(1, 0), (2, 0), (3, 0)]):
        dtype = numpy.dtype(endian + kind)
        values = generator.integers(-100, 100, shape) / 4
        if dtype.kind == "c":
            values = values + 1j * generator.integers(-100, 100, shape)
        with numpy.errstate(all="ignore"):
            array = numpy.asarray(values).astype(dtype, order=order)
        with open(given, "wb") as file:
            numpy.lib.format.write_array(file, array, version=version)
        subprocess.run([probe, "npy", given, returned], check=True)
        got = numpy.load(returned)
        assert got.dtype == dtype.newbyteorder("<"), (dtype, got.dtype)
        assert got.shape == array.shape and got.flags.f_contiguous == array.flags.f_contiguous, (dtype, order, shape)
        assert numpy.array_equal(got, array), (dtype, order, shape, version)
        cases += 1
    refused = 0
    for array in [numpy.array(["text"]), numpy.zeros(2, "f4,i4"), numpy.array([{}]), numpy.zeros(1, "M8[s]")]:
        numpy.save(given, array)
        result = subprocess.run([probe, "npy", given, returned], stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 1 and given in result.stderr, result
        refused += 1
    return cases, refused


def check_csv(probe, folder):
    path = os.path.join(folder, "t.csv")
    dice = random.Random(1)
    texts = ["plain", "with, comma", 'with "quotes"', "", " spaces ", "ünï", '"', "a;b"]
    for has_header, has_label, quoting in itertools.product(
            [False, True], [False, True], [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]):
        names = ["first", "the, second", 'the "third"']
        rows = [[dice.choice([dice.gauss(0, 1), dice.randrange(-9, 9), 10.0 ** dice.randrange(-300, 300)])
                 for _ in names] for _ in range(200)]
        labels = [dice.choice(texts) for _ in rows]
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=quoting)
            if has_header:
                writer.writerow(names[:1] + ["label"] * has_label + names[1:])
            for row, label in zip(rows, labels):
                writer.writerow(row[:1] + [label] * has_label + row[1:])
        printed = subprocess.run([probe, "csv", path, str(int(has_header)), "1" if has_label else "-1"],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
        got = {key: [line[len(key) + 1:] for line in printed if line.startswith(key + " ")]
               for key in ("column", "value", "label")}
        assert [float.fromhex(value) for value in got["value"]] == [float(x) for row in rows for x in row]
        if has_header:
            assert got["column"] == names, got["column"]
        # Quoted spaces are kept, others are not.
        expected = [label if quoting != csv.QUOTE_MINIMAL else label.strip(" ") for label in labels]
        assert got["label"] == (expected if has_label else []), got["label"][:10]


def main():
    with tempfile.TemporaryDirectory() as folder:
        cases, refused = check_npy(sys.argv[1], folder)
        check_csv(sys.argv[1], folder)
    print(f"{cases} .npy files read and written as NumPy does, {refused} refused; "
          "12 CSV files read as Python writes them")


if __name__ == "__main__":
    main()
