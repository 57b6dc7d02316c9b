"""Whether each sample was used exactly once in each epoch. A rank writes a line before each step that it begins, to
FOLDER/….rank<N>: "<step> <epoch> <world size> <consumed before> <sample> … .". A step that is made again has the same samples
again; that no step counts twice is what the equal bytes of the result say. A line without its point is of a process that was
killed while it wrote it, before the step: the kernel gives up such a write where a page ends."""

import collections
import pathlib


def _parts(file):
    for line in file.read_text().splitlines():
        *numbers, end = line.split() or [""]
        if end == ".":
            step, epoch, world, _, *samples = map(int, numbers)
            yield step, epoch, world, samples


def what_is_wrong(folder, epochs, count):
    """None if nothing is; of a training of so many epochs, with so many samples in each. Neither padded nor dropped."""
    steps = {}  # (step, rank): (epoch, world, samples)
    for file in sorted(pathlib.Path(folder).iterdir()):
        rank = int(file.name.rpartition(".rank")[2])
        for step, epoch, world, samples in _parts(file):
            if steps.setdefault((step, rank), (epoch, world, samples)) != (epoch, world, samples):
                return f"step {step} of rank {rank} was made again with other samples"
    used = [collections.Counter() for _ in range(epochs)]
    for (step, rank), (epoch, world, samples) in sorted(steps.items()):
        if missing := [other for other in range(world) if (step, other) not in steps]:
            return f"step {step} was made without rank {missing[0]}"
        if epoch >= epochs:
            return f"step {step} is in epoch {epoch}, after the last one"
        used[epoch].update(samples)
    for epoch, times in enumerate(used):
        if wrong := [sample for sample in range(count) if times[sample] != 1]:
            return f"{len(wrong)} samples were not used exactly once in epoch {epoch}: {wrong[0]}, {times[wrong[0]]} times"
    return None
