"""What trainings do, each as one case, with the real PyTorch: run by standby_parity.py as a plain start and as a standby."""

import os
import sys
import threading

TRACED = set()  # files, as coverage.py sees them, which fails when it cannot read one
if "traced" in os.environ.get("CASE", "").split(","):
    sys.settrace(lambda frame, event, argument: TRACED.add(frame.f_code.co_filename))

import torch  # noqa: E402

sys.settrace(None)

PROCESSES = int(os.environ.get("PROCESSES", "2"))


class OfMain:
    """Pickled by reference to __main__."""

    def __init__(self, value):
        self.value = value


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([index * index]), OfMain(index).value


def square(value):
    return value * value


def loader():
    for context in ("fork", "spawn"):
        batches = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=PROCESSES,
                                              multiprocessing_context=context)
        print(context, [batch[0].flatten().tolist() for batch in batches])


def processes():
    import torch.multiprocessing as multiprocessing
    for method in ("fork", "spawn", "forkserver") if PROCESSES > 1 else ("fork", "forkserver"):  # loader() spawns
        with multiprocessing.get_context(method).Pool(PROCESSES) as pool:
            print(method, pool.map(square, range(5)))


def pickles():
    import pickle
    data = pickle.dumps(OfMain(3))
    print(data, pickle.loads(data).value, type(pickle.loads(pickle.dumps(torch.ones(2)))))


def step():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 64)).square().mean()
        loss.backward()
        optimizer.step()
    print(loss.item().hex(), torch.get_num_threads(), torch.get_num_interop_threads(), torch.is_grad_enabled())
    print(torch.get_default_dtype(), torch.__config__.parallel_info())


def parallel_region():
    # A region of OpenMP in the process that forked would hang this one.
    torch.set_num_threads(2)
    print(torch.randn(800, 800, generator=torch.Generator().manual_seed(1)).matmul(torch.eye(800)).sum().item().hex())


def group():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    model(torch.ones(4, 8)).sum().backward()
    print(model.module.weight.grad.tolist(), dist.get_backend())
    dist.destroy_process_group()


def compiled():
    torch.manual_seed(3)
    function = torch.compile(lambda x: (x.sin() + 1).sum(), backend="aot_eager")
    print(function(torch.ones(4)).item().hex())


def recorded():
    from torch.distributed.elastic.multiprocessing.errors import record
    os.environ["TORCHELASTIC_ERROR_FILE"] = os.environ["FOLDER"] + "/error.json"

    @record
    def main():
        raise ValueError("recorded")
    main()


def random_numbers():
    import random

    import numpy
    print(len({random.random(), numpy.random.rand(), torch.rand(1).item()}))


def arguments():
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--needed", required=True)
    parser.parse_args()


def profiled():
    import cProfile
    cProfile.run("square(3)")


def traced():
    print([each for each in TRACED if not each.startswith("<") and not os.path.exists(each)])


def late_thread():
    threading.Timer(0.2, lambda: print("later", torch.ones(2).sum().item())).start()


def exit_handlers():
    import atexit
    atexit.register(print, "first registered")
    atexit.register(lambda: print("last registered", torch.ones(1).item()))
    sys.exit(3)


def raises():
    torch.ones(2).matmul(torch.ones(3))


def modules():
    # Nothing but what a plain start has loaded and what was loaded in advance.
    print(torch.__spec__.name, torch.__file__, torch.nn.__spec__.origin, sys.path[0])
    import importlib.metadata
    print(importlib.metadata.version("torch"), __spec__, __name__)


if __name__ == "__main__":
    for case in os.environ["CASE"].split(","):
        globals()[case]()
