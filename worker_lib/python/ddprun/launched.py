"""What each worker of ddprun.launch() runs: `python -m ddprun.launched FOLDER`."""
import multiprocessing.spawn
import os
import pickle
import sys
import time
import traceback

from ddprun import launching


def main(folder):
    round, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    for earlier in range(round):
        _remove(launching.file_of(folder, launching.RESULT, earlier, rank))
    try:
        result = call(folder)
        try:
            launching.dump(result, launching.file_of(folder, launching.RESULT, round, rank))
        except pickle.PicklingError as error:
            raise pickle.PicklingError(f"what rank {rank} returned, a {type(result).__name__}, cannot be pickled: {error}") from None
    except BaseException as error:
        now = time.monotonic()
        its = error.__traceback__
        while its.tb_next and its.tb_frame.f_code.co_filename == __file__:
            its = its.tb_next
        error = error.with_traceback(its)
        if isinstance(error, SystemExit) and not error.code:
            launching.dump(None, launching.file_of(folder, launching.RESULT, round, rank))
            raise
        text = "".join(traceback.format_exception(error))
        launching.dump((now, text, _pickled(error)), launching.file_of(folder, launching.ERROR, round, rank))
        if not isinstance(error, Exception):
            raise
        sys.excepthook(type(error), error, its)
        sys.exit(1)


def call(folder):
    with open(os.path.join(folder, launching.CALLER), "rb") as file:
        caller, environment = pickle.load(file)
    for name, value in environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    launching.is_importing_main = True
    multiprocessing.spawn.prepare(caller)
    launching.is_importing_main = False
    with open(os.path.join(folder, launching.CALL), "rb") as file:
        f, args, kwargs = pickle.load(file)
    return f(*args, **kwargs)


def _remove(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _pickled(error):
    try:
        return pickle.dumps(error)
    except Exception:
        return None


if __name__ == "__main__":
    main(sys.argv[1])
