"""One line for each thing that was measured, and the bars that it is held against."""

import statistics


class Row:
    """One line of the table: samples of every contestant, and the bars that their medians are held against."""

    def __init__(self, what, unit, digits=1):
        self.what, self.unit, self.digits = what, unit, digits
        self.samples = {}
        self.bars = []

    def add(self, contestant, sample):
        self.samples.setdefault(contestant, []).append(sample)

    def median(self, contestant):
        return statistics.median(self.samples[contestant])

    def ratio(self, contestant, to):
        return self.median(contestant) / self.median(to)

    def bar(self, text, value, holds):
        self.bars.append({"bar": text, "value": value, "holds": holds})

    def cells(self):
        def shown(contestant):
            return f"{self.median(contestant):.{self.digits}f}" if contestant in self.samples else ""

        peers = [name for name in self.samples if name not in ("ddprun", "floor")]
        peer = "torchrun" if "torchrun" in peers else next(iter(peers), None)
        against_floor = f"{self.ratio('ddprun', 'floor'):.2f}" if "floor" in self.samples else ""
        against_peer = f"{self.ratio(peer, 'ddprun'):.{3 if self.digits > 1 else 1}f}" if peer else ""
        bars = "; ".join(f"{bar['bar']}: {bar['value']:.3g} {'holds' if bar['holds'] else 'MISSES'}" for bar in self.bars)
        count = f"{len(self.samples['ddprun'])}"
        return [self.what, self.unit, shown("floor"), shown("ddprun"), shown(peer), against_floor, against_peer, count,
                bars]

    def as_json(self):
        return {
            "what": self.what,
            "unit": self.unit,
            "median": {name: self.median(name) for name in self.samples},
            "samples": self.samples,
            "bars": self.bars,
            "cells": self.cells(),
        }


HEADINGS = ["what", "unit", "floor", "ddprun", "PyTorch", "× floor", "PyTorch ÷ ddprun", "runs", "bar"]


def aligned(table):
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
        cells += [cell.rjust(width) for cell, width in zip(row[2:-1], widths[2:-1])]
        yield "  ".join(cells + [row[-1]]).rstrip()


def markdown(table):
    yield "| " + " | ".join(table[0]) + " |"
    yield "|---|---|" + "---:|" * (len(table[0]) - 3) + "---|"
    for row in table[1:]:
        yield "| " + " | ".join(row) + " |"
