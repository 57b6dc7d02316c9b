"""Where the program ddprun is: `python -m ddprun` and ddprun.launch() execute it."""
import os
import sysconfig


def find() -> str:
    """The path of the program ddprun of this Python's environment, else the user's own, else that on PATH.

    Raises FileNotFoundError, with a sentence, if it is in none of these places. Any thread may call.
    """
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))]
    for path in [os.path.join(folder, "ddprun") for folder in folders]:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    from shutil import which
    on_path = which("ddprun")
    if on_path is None:
        raise FileNotFoundError(f"the program ddprun is neither in {' nor in '.join(folders)}, nor on PATH; `pip install` of ddprun's "
                                "wheel puts it beside this Python")
    return os.path.abspath(on_path)
