"""A small filesystem for what the program writes, which can be full, or so slow that whatever writes to it waits. Needs
root. To be slow it is ext4 in a file, which can be frozen (FIFREEZE): as of a disk or a server that does not answer, writes
wait until it goes on, and nobody can kill who waits. Where that cannot be had it is a tmpfs, which can only be full."""

import errno
import fcntl
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

MB = 1 << 20
SIZE_MB = 512
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
_FILLER = ".chaos-fills-it"


def _run(*command):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise OSError(errno.EIO, f"{command[0]}: {done.stderr.strip()}")


def _mount(folder, image):
    if image is None:
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "chaos", str(folder))
        return
    with open(image, "wb") as file:
        file.truncate(SIZE_MB * MB)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(image))
    _run("mount", "-o", "loop", str(image), str(folder))
    (folder / "lost+found").rmdir()


def _control(folder, request):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, request, 0)
    finally:
        os.close(descriptor)


def obstacle_to_full():
    return None if os.geteuid() == 0 else "only root may mount a small disk"


@functools.cache
def obstacle_to_slow():
    """Tries it."""
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    if not shutil.which("mkfs.ext4"):
        return "there is no mkfs.ext4"
    with tempfile.TemporaryDirectory(prefix="ddprun-chaos-") as base:
        folder = pathlib.Path(base) / "disk"
        folder.mkdir()
        try:
            _mount(folder, pathlib.Path(base) / "image")
            try:
                _control(folder, _FIFREEZE)
                _control(folder, _FITHAW)
            finally:
                _run("umount", str(folder))
        except OSError as error:
            return f"no filesystem in a file can be frozen here: {error.strerror}"
    return None


class Disk:
    def __init__(self, folder, can_be_slow):
        self.folder = folder
        self._image = folder.with_name("disk") if can_be_slow else None
        self._is_frozen = False
        _mount(folder, self._image)

    def fill(self):
        size = SIZE_MB * MB
        with open(self.folder / _FILLER, "wb") as file:
            while size >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:
                    size //= 2

    def freeze(self):
        _control(self.folder, _FIFREEZE)
        self._is_frozen = True

    def restore(self):
        if self._is_frozen:
            _control(self.folder, _FITHAW)
            self._is_frozen = False
        (self.folder / _FILLER).unlink(missing_ok=True)

    def close(self):
        """What is on it stays in the folder. Its processes have ended."""
        self.restore()
        kept = self.folder.with_name("kept")
        shutil.copytree(self.folder, kept, symlinks=True)
        _run("umount", str(self.folder))
        self.folder.rmdir()
        kept.rename(self.folder)
        if self._image:
            self._image.unlink()
