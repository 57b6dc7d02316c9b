"""What scripts/chaos finds out by itself: samples that are lost or used twice, growth, the order of faults, its report."""

import dataclasses
import itertools
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
sys.dont_write_bytecode = True

from campaigns import documents, growth, report, samples  # noqa: E402
from campaigns.campaign import in_order  # noqa: E402
from campaigns.faults import KINDS, draw  # noqa: E402

# Of two ranks, two epochs with four samples each, a step of one sample of each rank.
RANK0 = ["1 0 2 0 0 .", "2 0 2 2 2 .", "3 1 2 0 1 .", "4 1 2 2 3 ."]
RANK1 = ["1 0 2 0 1 .", "2 0 2 2 3 .", "3 1 2 0 0 .", "4 1 2 2 2 ."]


class Samples(unittest.TestCase):
    def wrong(self, rank0, rank1):
        with tempfile.TemporaryDirectory() as folder:
            for rank, lines in enumerate((rank0, rank1)):
                (pathlib.Path(folder) / f"of.rank{rank}").write_text("".join(f"\n{line}" for line in lines))
            return samples.what_is_wrong(folder, epochs=2, count=4)

    def test_each_once_is_right(self):
        self.assertIsNone(self.wrong(RANK0, RANK1))

    def test_a_step_that_is_made_again_is_right(self):
        self.assertIsNone(self.wrong(RANK0[:3] + RANK0[1:], RANK1[:2] + RANK1[1:]))

    def test_a_lost_sample_is_found(self):
        self.assertIn("not used exactly once in epoch 1: 2, 0 times", self.wrong(RANK0[:3], RANK1[:3]))

    def test_a_sample_that_is_used_twice_is_found(self):
        self.assertIn("epoch 0: 1, 2 times", self.wrong([RANK0[0], "2 0 2 2 1 .", *RANK0[2:]], RANK1))

    def test_other_samples_in_a_step_that_is_made_again_are_found(self):
        self.assertIn("step 2 of rank 0", self.wrong([*RANK0[:2], "2 0 2 2 0 .", *RANK0[2:]], RANK1))

    def test_a_step_without_one_rank_is_found(self):
        self.assertIn("step 2 was made without rank 1", self.wrong(RANK0, [RANK1[0], *RANK1[2:]]))

    def test_a_line_that_was_not_finished_is_none(self):
        self.assertIsNone(self.wrong([*RANK0[:2], "3 1", *RANK0[2:]], [*RANK1, "5 2 2"]))

    def test_an_epoch_too_many_is_found(self):
        self.assertIn("epoch 2", self.wrong([*RANK0, "5 2 2 0 0 ."], [*RANK1, "5 2 2 0 1 ."]))


class Growth(unittest.TestCase):
    def sizes(self, kib_each=0.0, files_each=0.0, count=200):
        return [growth.Size(int(5000 + kib_each * n), int(20 + files_each * n), 3) for n in range(count)]

    def test_a_process_that_stays_is_right(self):
        self.assertIsNone(growth.what_is_wrong("it", self.sizes()))

    def test_what_grows_once_is_right(self):
        self.assertIsNone(growth.what_is_wrong("it", self.sizes()[:40] + self.sizes(kib_each=100)[40:41] * 160))

    def test_memory_and_files_that_are_lost_each_time_are_found(self):
        self.assertIn("KiB", growth.what_is_wrong("it", self.sizes(kib_each=100)))
        self.assertIn("files", growth.what_is_wrong("it", self.sizes(files_each=0.3)))

    def test_more_children_are_no_growth(self):
        grown = [dataclasses.replace(size, children=3, files=60) for size in self.sizes(count=120)]
        self.assertIsNone(growth.what_is_wrong("it", self.sizes(count=80) + grown))

    def test_a_short_life_tells_nothing(self):
        self.assertEqual(growth.growth(self.sizes(kib_each=1000, count=100)), {})


class Faults(unittest.TestCase):
    def test_the_same_seed_gives_the_same_faults(self):
        def first(seed):
            return list(itertools.islice(draw(seed, list(KINDS), 1.0), 200))

        self.assertEqual(first(7), first(7))
        self.assertNotEqual(first(7), first(8))
        self.assertEqual({fault.kind for fault in first(7)}, set(KINDS))
        self.assertLess(max(abs(fault.clock_step_s) for fault in first(7)), 3600)


class Report(unittest.TestCase):
    def test_the_last_file_is_the_one_with_the_highest_number(self):
        self.assertEqual(max(["step-95", "step-100", "step-9"], key=in_order), "step-100")

    def test_every_downtime_is_in_the_histogram_once(self):
        bars = report.histogram([5, 15, 15, 90_000, 49.9])
        self.assertEqual(bars[:3], [("< 10 ms", 1), ("< 20 ms", 2), ("< 50 ms", 1)])
        self.assertEqual(bars[-1], ("≥ 60 s", 1))
        self.assertEqual(sum(count for _, count in bars), 5)

    def test_a_report_replaces_the_one_before(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "README.md"
            begin, end = "<!-- chaos full:begin (written by scripts/chaos --full --update-readme) -->", "<!-- chaos full:end -->"
            page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
            documents.put(page, "full", ["new", "lines"])
            self.assertEqual(page.read_text(), f"before\n{begin}\nnew\nlines\n{end}\nafter\n")


if __name__ == "__main__":
    unittest.main()
