"""Programs that notice how they were started (standby_programs/), each by ddprun without standbys and with them: every rank
says the same in both rounds of both jobs.

    python standby_programs.py DDPRUN [quick | real | PROGRAM…]
"""

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent / "standby_programs"
PACKAGES = HERE / "packages"
LIMIT_S = 600


class Program:
    """What becomes of it with standbys: `why` is part of what ddprun says of a package that it does not import early any
    more, or of none that is left; without it all ranks of the second round were standbys. `draws`: all ranks must have drawn
    different numbers. `edit`: a file, and what is replaced in it between the rounds. `python`: what runs the program,
    where ddprun does not. `needs`: packages that it is skipped without; with torch among them it has the real PyTorch. `file`:
    likewise."""

    def __init__(self, *words, preload=("torch",), why=None, draws=False, needs=(), file=None, variables=None, doubled=(),
                 edit=None, python=None):
        self.words, self.preload, self.why, self.draws, self.needs, self.file = words, preload, why, draws, needs, file
        self.variables, self.doubled, self.edit, self.python = variables or {}, doubled, edit, python


def named(module, why=None, **others):
    return Program(preload=(module,), why=why, **others)


LOOKER = "looker no longer: "
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
PROGRAMS = {
    # How a program is started, and what it does.
    "script": Program("--first", "a b", ""),
    "as_module": Program("-m"),
    "isolated": Program(why="no standbys", python=lambda path: [sys.executable, "-I", str(path)]),
    "by_code": Program(why="no standbys", python=lambda path: [sys.executable, "-c", path.read_text(), "a"]),
    "by_stdin": Program(why="no standbys", python=lambda path: ["sh", "-c", f"{sys.executable} - a <{path}"]),
    "processes": Program(),
    "with_asyncio": Program(),
    "with_threads": Program(),
    "with_sqlite": Program(),
    "logging_after": Program(),
    "traced": Program(),
    "seeds": named("parts"),
    "seeds_differ": Program(draws=True),
    "edits_itself": Program(edit=("program/edits_itself.py", "== 0", "== 1")),
    "user_customizes": Program(variables={"PYTHONPATH": f"{PACKAGES}/customizing:{PACKAGES}"}),
    # Coverage begins by a .pth file, before the program and the zygote.
    "with_coverage": Program(why="no standbys: a debugger or profiler is active before the program starts", needs=("coverage",),
                             variables={"COVERAGE_PROCESS_START": f"{PACKAGES}/coveragerc"}),
    "with_jemalloc": Program(file=JEMALLOC, variables={"LD_PRELOAD": JEMALLOC}),
    # What it has done before an import that could see it.
    "logging_before": Program(),
    "logging_before_a_named_package": named("looker", LOOKER + "the program has changed the configuration of logging"),
    "logger_before": named("setter", "setter no longer: the program has changed the logger setter"),
    "stdout_before": named("looker", "the program has changed sys.stdout"),
    "folder_before": named("looker", "the program has changed the current folder"),
    "path_before": named("parts", "parts no longer: own has a module parts of its own"),
    "path_without_such_a_module": Program(),
    "path_removed": named("parts", "parts no longer: the program has removed "),
    "path_swapped": named("parts", "/second has a module parts of its own", variables={"PYTHONPATH": f"{PACKAGES}:{PACKAGES}/second"}),
    "optional_module_appears": named("looker", "has a module optional of its own"),
    "module_blocked": named("parts,parts.one"),
    "module_replaced": named("looker", LOOKER + "the program has a module optional"),
    "standard_module_replaced": named("with_decimal", "the program has replaced the module decimal"),
    "function_replaced": named("looker", "the program has changed builtins.repr"),
    "excepthook_before": named("looker", "the program has changed sys.excepthook"),
    "import_hook_before": Program(why="the program has changed sys.meta_path"),
    "dlopen_flags_before": named("looker", "the program has changed the flags of dlopen"),
    "variable_before": named("looker", LOOKER + "the program sets LOOKER"),
    "variable_between": named("parts,looker", LOOKER + "the program sets LOOKER"),
    "variable_for_a_library": Program(why="no standbys: the program sets OMP_NUM_THREADS"),
    "variable_of_nobody": Program(),
    "warnings_ignored": Program(),
    "warnings_are_errors": named("looker", "the program has changed the filters of warnings"),
    "dtype_before": named("looker", LOOKER + "the program has changed the default dtype of PyTorch"),
    "signals_before": Program(),
    "begins_anew_in_a_thread": named("looker", LOOKER + "the program sets LOOKER"),
    "looks_at_specs": named("parts,setter,printer,with_data,replaces_itself"),
    "imports_in_threads": named("several,parts.one"),
    "loggers_in_parts": named("logs,logs.more,logs.last"),
    "looks_without_import": Program(why="no standbys: the program sets OMP_NUM_THREADS", doubled=("True False",)),
    "begins_anew_as_a_plain_start": named("looker", "the program has changed the current folder"),
    # What a package does while it is imported.
    "what_an_import_leaves": named("setter"),
    "only_rank_0_imports": named("profiled"),
    "only_rank_0_imports_a_method": named("profiled_class"),
    "only_rank_0_imports_what_registers": named("registers"),
    "registers_for_forks": named("forks", "forks registers a function for forks"),
    "calls_it_later": named("asks_later"),
    "prints_while_imported": named("printer"),
    "edits_a_submodule": named("parts.one", "one.py has changed",
                               edit=("packages/parts/one.py", "1", "2")),
    "copies": named("settings", "settings looks at all variables"),
    "copies_bytes": named("settings_of_bytes", "settings_of_bytes looks at all variables"),
    "reads_past_os": named("settings_of_posix_module", "settings_of_posix_module reads RANK"),
    "copies_past_os": named("copies_posix_module", "copies_posix_module looks at all variables"),
    "passes_on": named("settings_of_posix", "settings_of_posix starts a process"),
    "reads_a_rank": named("reader", "reader reads RANK"),
    "makes_a_generator": named("generator", "generator makes random numbers", draws=True),
    "seeded_by_a_clock": named("seeded_by_clock", "seeded_by_clock makes random numbers", draws=True),
    "shares_memory": named("with_shared_memory", "with_shared_memory maps memory that processes share"),
    "makes_a_temporary_folder": named("temporary", "temporary makes a temporary file or folder", draws=True),
    "opens_a_pipe": named("opener", "opener opens pipe:"),
    "makes_a_lock": named("locked", "locked makes a lock"),
    "notes_its_process_id": named("numbered", "numbered asks for its process id"),
    "starts_a_thread": named("starter", "starter: it starts a thread"),
    # Each point of the list "other than after exec" (agent/README.md).
    "list_environ_of_proc": Program(),
    "list_hash_of_str": Program(variables={"PYTHONHASHSEED": "7"}),
    "list_memory_layout": Program(),
    "list_submodules_are_visible": Program(),
    "list_standard_library_is_loaded": Program(),
    "list_no_terminal": Program(),
    "list_printed_twice": named("looker", LOOKER, doubled=("before",)),
    "list_times_of_imports": Program(),
    "list_loaded_is_not_collected": Program(),
    "list_environment_in_c": named("reads_in_c"),
    # The packages of the list.
    "real_ddp": Program(needs=("torch",)),
    "real_compile": Program(needs=("torch",)),
    "real_seeds": Program(needs=("torch", "numpy", "sympy"), draws=True),
    "real_threads_between": Program(needs=("torch", "numpy"), why="no standbys: the program sets OMP_NUM_THREADS"),
    "real_transformers": Program(needs=("torch", "transformers"), draws=True),
    "real_lightning": Program(needs=("torch", "lightning")),
    "real_datasets": Program(needs=("torch", "datasets"), draws=True),
    "real_accelerate": Program(needs=("torch", "accelerate")),
}


class Failed(Exception):
    pass


class Job:
    """One run of a program. `said`: {(round, rank): its stdout}; `waited`: (round, rank) of those that were standbys."""

    def __init__(self, ddprun, name, program, standby, folder):
        self.folder, self.told = folder, folder / "told"
        own = folder / "program"
        own.mkdir()
        shutil.copytree(PACKAGES, folder / "packages")
        path = own / (name + ".py")
        if (HERE / name).is_dir():
            shutil.copytree(HERE / name, own / name)
        else:
            shutil.copy(HERE / path.name, path)
        has_torch = "torch" in program.needs
        if has_torch:
            shutil.rmtree(folder / "packages/torch")
        words = ["-m", name, "a"] if "-m" in program.words else [str(path), *program.words]
        if program.python:
            words = ["--no-python", *program.python(path)]
        preload = [] if has_torch or program.python else ["--preload=" + ",".join(program.preload)]
        variables = {each: value.replace(str(PACKAGES), str(folder / "packages"))
                     for each, value in {"PYTHONPATH": str(PACKAGES), **program.variables}.items()}
        environment = {**os.environ, "PYTHON_EXEC": sys.executable, "DDPRUN_LOG_LEVEL": "info", "OMP_NUM_THREADS": "1",
                       "FOLDER": str(folder), "PACKAGES": str(folder / "packages"), "HOME": str(folder),
                       "PWD": str(own), "HF_HUB_OFFLINE": "1", "DDPRUN_CONTROL_DIR": str(folder), **variables}
        with open(self.told, "w") as told:
            self.process = subprocess.Popen(
                [ddprun, "--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=1", f"--standby={standby}",
                 "--redirects=3", f"--log-dir={folder}/logs", "--rdzv-id=job", *preload, *words],
                cwd=own, env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=told)
        try:
            self.until(lambda: all((folder / f"said-{rank}").exists() for rank in range(2)))
            if standby != "off":
                self.until(lambda: any(each in self.told.read_text() for each in ("for a restart", "no standbys", "has no effect")))
            if program.edit:
                self.edit(folder / program.edit[0], *program.edit[1:])
            (folder / "go").touch()
            code = self.process.wait(LIMIT_S)
            if code != 0:
                raise Failed(f"{name} with --standby={standby} ends with {code}:\n{self.text()}")
        finally:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                self.process.wait()
        logs, = (folder / "logs").glob("*")
        self.said = {(attempt, rank): (logs / f"attempt_{attempt}/{rank}/stdout.log").read_text().replace(str(folder), "FOLDER")
                     for attempt in range(2) for rank in range(2)}
        self.waited = {(attempt, rank) for attempt in range(2) for rank in range(2)
                       if (folder / f"waited-{attempt}-{rank}").exists()}
        self.drawn = [line for attempt in range(2) if (file := folder / f"drawn-{attempt}").exists()
                      for line in file.read_text().splitlines()]

    @staticmethod
    def edit(path, old, new):
        edited = path.with_suffix(".new")
        edited.write_text(path.read_text().replace(old, new))
        edited.replace(path)

    def text(self):
        logs = [f"{file.relative_to(self.folder)}:\n{file.read_text()[-2000:]}" for file in self.folder.glob("logs/*/*/*/*.log")]
        return "\n".join([self.told.read_text()[-3000:], *logs])

    def until(self, holds):
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{self.process.args} has not got on:\n{self.text()}")
            time.sleep(0.02)


def check(ddprun, name):
    program = PROGRAMS[name]
    if missing := [each for each in program.needs if importlib.util.find_spec(each) is None]:
        return f"skipped: {', '.join(missing)} is not installed"
    if program.file and not os.path.exists(program.file):
        return f"skipped: there is no {program.file}"
    jobs = []
    for standby in ("off", "auto"):
        with tempfile.TemporaryDirectory() as folder:
            jobs.append(Job(ddprun, name, program, standby, pathlib.Path(folder).resolve()))
            told = jobs[-1].told.read_text()
    off, auto = jobs
    for rank in range(2):
        for job, attempt in ((off, 1), (auto, 0), (auto, 1)):
            expected, said = off.said[0, rank], job.said[attempt, rank]
            for line in program.doubled:
                said = said.replace(f"{line}\n{line}\n", f"{line}\n")
            if said != expected:
                raise Failed(f"rank {rank} of {name} says\n{expected}\nand in round {attempt} {'with' if job is auto else 'without'} "
                             f"standbys\n{said}\n{told}")
    if not all(off.said.values()) and name != "isolated":
        raise Failed(f"{name} says nothing")
    if program.draws and len(set(auto.drawn)) != 4:
        raise Failed(f"the ranks of {name} have drawn {auto.drawn}")
    losses = ("no longer", "no standbys", "alone")
    if off.waited:
        raise Failed(f"{name} had standbys with --standby=off")
    # The first round has them where the text sets no variable, and the modules are loaded in time.
    expected = {(1, 0), (1, 1)}
    if program.why is None and (any(loss in told for loss in losses) or not auto.waited >= expected):
        raise Failed(f"{name} was to have standbys; {sorted(auto.waited)} were\n{told}")
    if program.why is not None and program.why not in told:
        raise Failed(f"ddprun was to say {program.why!r} of {name}:\n{told}")
    return "the same" + (f", with standbys {sorted(auto.waited)}" if program.why else "")


def main():
    ddprun, *chosen = sys.argv[1:]
    kinds = {"quick": [name for name in PROGRAMS if "torch" not in PROGRAMS[name].needs],
             "real": [name for name in PROGRAMS if "torch" in PROGRAMS[name].needs]}
    unknown = {file.stem for file in HERE.glob("*") if file.name not in ("packages", "__pycache__")} ^ set(PROGRAMS)
    if unknown:
        sys.exit(f"only a file, or only in the table: {sorted(unknown)}")
    failed = []
    for name in [name for each in chosen or kinds for name in kinds.get(each, [each])]:
        try:
            print(f"{name}: {check(os.path.abspath(ddprun), name)}", flush=True)
        except Failed as failure:
            failed.append(name)
            print(f"{name}: {failure}", flush=True)
    sys.exit(f"not as a plain start: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
