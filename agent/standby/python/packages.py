"""Which packages a zygote imports early: PyTorch, what --preload names, and of the packages below those that the program's
text imports. Each of these was read and tried, in these versions, with what it imports: what it makes while it is imported
that two processes must not share, and what it looks at. A package that is not here is imported by the rank itself, with
the rank's variables; --preload imports it early, if it does nothing that a second process would notice (imports.py).
"""

import os
import sys
import uuid

FILES_MAX = 200  # so many files of the program are read
BYTES_MAX = 1 << 20


class Package:
    def __init__(self, versions=(), variables=(), does=(), reads=(), ignores=(), renew=None):
        self.versions = versions    # major ones that were tried; empty: it is not imported for its own sake
        self.variables = variables  # beginnings of the names of variables that matter to it and are not seen to be read
        self.does = does            # names in imports.DOINGS: without harm, or put right by `renew`
        self.reads = reads          # variables of a worker; `renew` puts right what became of them
        self.ignores = ignores      # names in state.PARTS: it does not look at these while it is imported
        self.renew = renew          # in each process that gets the package; its argument: sys.modules


# Each function is given {name: module} of what was loaded at one time: a later part of a package must not draw a second time.
def _of_sympy(modules):
    if core := modules.get("sympy.core.random"):
        core.rng.seed()
        core._assumptions_rng.seed()
    if symbol := modules.get("sympy.core.symbol"):
        symbol.Dummy._prng.seed()
        symbol.Dummy._base_dummy_index = symbol.Dummy._prng.randint(10**6, 9 * 10**6)


def _of_numpy(modules):
    if numpy := modules.get("numpy.random"):
        numpy.seed()


def _of_torch(modules):
    if generator := getattr(modules.get("torch"), "default_generator", None):
        generator.seed()
    if contract := modules.get("torch.distributed._composable.contract"):
        for name in ("STATE_KEY", "REGISTRY_KEY"):
            setattr(contract, name, contract.generate_state_key())


def _of_transformers(modules):
    if hub := modules.get("transformers.utils.hub"):
        hub.SESSION_ID = uuid.uuid4().hex


def _of_datasets(modules):
    if fingerprint := modules.get("datasets.fingerprint"):
        fingerprint.fingerprint_rng.seed()


def _of_multiprocess(modules):
    if process := modules.get("multiprocess.process"):
        process.current_process().authkey = os.urandom(32)


def _of_torchmetrics(modules):
    if prints := modules.get("torchmetrics.utilities.prints"):
        prints.rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", 0))


def _of_lightning(modules):
    for name in ("lightning.fabric", "lightning_fabric"):
        if own := modules.get(name + ".utilities.rank_zero"):
            own.rank_zero_only.rank = own._get_rank() or 0


def _of_rich(modules):
    import itertools
    import random
    if style := modules.get("rich.style"):
        style._id_generator = itertools.count(random.getrandbits(24))  # as it does while it is imported


_NOTHING_OF_THE_PROGRAM = ("logging", "signals", "numpy", "torch")
_OF_LIGHTNING = dict(versions=(2,), variables=("PL_", "LIGHTNING_", "SLURM_", "JSM_"), reads=("RANK", "LOCAL_RANK"),
                     renew=_of_lightning)
PACKAGES = {
    "torch": Package((2,), ("TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_"), ("draws", "registers for forks"), (), _NOTHING_OF_THE_PROGRAM, _of_torch),
    "numpy": Package((1, 2), ("NPY_", "NUMPY_"), ("draws",), (), _NOTHING_OF_THE_PROGRAM, _of_numpy),
    "tqdm": Package((4,), ("TQDM_",), ("copies",), (), _NOTHING_OF_THE_PROGRAM),
    "transformers": Package((5,), ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "RAYON_"), ("draws",), (), ("signals",),
                            _of_transformers),
    "accelerate": Package((1,), ("ACCELERATE_", "FSDP_"), (), (), ("signals",)),
    "lightning": Package(**_OF_LIGHTNING),
    "pytorch_lightning": Package(**_OF_LIGHTNING),
    # What torch imports from 2.15 on, to find libraries: it runs ldconfig, with no variable of the environment.
    "cuda": Package(variables=("CUDA_", "CONDA_"), does=("starts a process",)),
    # What these import. datasets is not imported for its own sake: pyarrow starts a thread then.
    "datasets": Package(variables=("HF_", "ARROW_"), does=("draws",), renew=_of_datasets),
    "sympy": Package(does=("draws",), renew=_of_sympy),
    # It compares the id before use. What it registers makes locks and a list anew.
    "fsspec": Package(variables=("FSSPEC_",), does=("copies", "asks for its process id", "registers for forks")),
    "filelock": Package(does=("asks for its process id", "registers for forks")),  # made anew by what it registers
    "psutil": Package(does=("asks for its process id",)),    # for a look into /proc
    "multiprocess": Package(does=("draws",), renew=_of_multiprocess),
    # The lock is a trial, that it drops. What it registers forgets a process that it has not started.
    "joblib": Package(variables=("JOBLIB_", "LOKY_"), does=("makes a lock", "registers for forks")),
    "huggingface_hub": Package(does=("registers for forks",)),  # closes connections that it has not opened
    "lightning_fabric": Package(**{**_OF_LIGHTNING, "versions": ()}),
    "scipy": Package(does=("draws",)),  # for examples in texts
    "rich": Package(does=("draws from shared",), renew=_of_rich),
    "torchmetrics": Package(reads=("LOCAL_RANK",), renew=_of_torchmetrics),
}


def version_of(name):
    import importlib.metadata
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_tried(name):
    """Whether this package is one of the list, in a version that was tried."""
    package = PACKAGES.get(name)
    major = version_of(name).partition(".")[0] if package and package.versions else ""
    return major.isdecimal() and int(major) in package.versions


# ---- what the program's text imports

def _program():
    """(the program's text, the folder of its modules); either may be None."""
    words, path = sys.orig_argv, sys.argv[0] if sys.argv else ""
    folder = os.getcwd() if path in ("-c", "-m") else os.path.dirname(os.path.abspath(path))
    if path in ("-c", "-m"):
        at = next((at for at, word in enumerate(words) if at and word[:1] == "-" and word[1:2] != "-" and path[1] in word), None)
        if at is None:
            return None, folder
        value = words[at].partition(path[1])[2] or (words[at + 1] if at + 1 < len(words) else "")
        return (value if path == "-c" else _text_of_module(value, folder)), folder
    if os.path.isdir(path):
        return _read(path + "/__main__.py"), path
    return (_read(path) if os.path.isfile(path) else None), folder


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read(BYTES_MAX)
    except OSError:
        return None


def _paths_of_module(name, folder):
    path = os.path.join(folder, *name.split("."))
    return path + ".py", path + "/__init__.py"


def _text_of_module(name, folder):
    texts = [_read(path) for path in (*_paths_of_module(name, folder), *_paths_of_module(name + ".__main__", folder))]
    return b"\n".join(text for text in texts if text) or None


def _imports(text):
    """(level, module, names) of all imports, also those in functions."""
    import ast
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", tuple(alias.name for alias in node.names)


def of_program():
    """{module: names that are imported from it}, of packages of the list, in the order in which the program's text, and its
    own modules that it imports, have them."""
    text, folder = _program()
    found, seen, waiting = {}, set(), [(text, folder)] if text else []
    while waiting and len(seen) < FILES_MAX:
        text, own = waiting.pop(0)
        for level, module, names in _imports(text):
            if not level and module.partition(".")[0] in PACKAGES:
                found.setdefault(module, []).extend(name for name in names if name != "*" and name not in found[module])
                continue
            base = own
            for _ in range(level - 1):
                base = os.path.dirname(base)
            for name in filter(None, (module, *(f"{module}.{name}".lstrip(".") for name in names))):
                for path in _paths_of_module(name, base if level else folder):
                    if path not in seen and os.path.isfile(path):
                        seen.add(path)
                        waiting.append((_read(path) or b"", os.path.dirname(path)))
    return {module: names for module, names in found.items() if is_tried(module.partition(".")[0])}
