"""Files that somebody else may have put there: read only if they are regular, replaced whole, and whom they belong to.

Nothing here waits for another process, as opening a FIFO would.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

MOST = 2**28
"""Bytes of the largest file that is read."""
_CHUNK = 2**20
_LINKS = 40
"""Symbolic links on the way to a file, as many as Linux follows."""
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def is_file(path: str | Path) -> bool:
    """Whether there is a regular file of that name; False too for names that no file can have."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def kind(path: str | Path) -> str:
    """What is there besides a regular file, as in "a folder"; "" for a file and for nothing."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except (OSError, ValueError):
        return ""


def reason(error: Exception) -> str:
    """Why a file could not be read or written, without its name."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def shown(text: str) -> str:
    """A text that can be written as UTF-8, with escapes for what in the names of files is no character."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def lines_of(text: str) -> list[str]:
    """The lines of a program's text, which end where editors and Python end them: at no other character of Unicode."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def read(path: str | Path) -> bytes:
    """The bytes of a regular file. Raises OSError for whatever else there may be, and for one beyond MOST."""
    handle = open_regular(path, os.O_RDONLY)
    try:
        data = bytearray()
        while more := os.read(handle, _CHUNK):
            data += more
            if len(data) > MOST:
                raise OSError(errno.EFBIG, f"it has more than {MOST} bytes")
        return bytes(data)
    finally:
        os.close(handle)


def open_regular(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file. Raises OSError for whatever else there may be, which is not waited for.

    Of those that may be created, it opens only this user's or root's.
    """
    try:
        _require_regular(os.stat(path))  # first: to open a device may do something
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    try:
        found = os.fstat(handle)
        _require_regular(found)
        if flags & os.O_CREAT and not _is_own(found):  # somebody else was faster
            raise PermissionError(errno.EPERM, "it belongs to another user")
    except OSError:
        os.close(handle)
        raise
    return handle


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL, f"it is {what}, not a file")


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file whole or not at all; many processes may do so at once. Raises OSError.

    mode: of the new file, less what the umask takes.
    """
    temporary = path.with_name(f"{path.stem}_{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: str | Path, data: bytes) -> None:
    """Writes into what has a name that somebody chose: a file, new or not, a device, or a FIFO. Raises OSError.

    A FIFO that nobody reads is not waited for.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    except OSError as error:
        if error.errno == errno.ENXIO and kind(path) == "a FIFO":
            raise OSError(errno.ENXIO, "nobody reads this FIFO") from None
        raise
    with open(handle, "wb") as file:
        os.set_blocking(handle, True)
        file.write(data)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, to which nobody else may write, if they are not there. Raises OSError."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(0o755)
        except FileExistsError:
            if not path.is_dir():
                raise


def distrusted(path: str | Path) -> str:
    """Who besides this user and root could have put a file there, or could write to it; "" for nobody.

    Each folder and each link on the way counts. In a folder with the sticky bit others cannot replace what is not
    theirs. Raises OSError for a way that leads nowhere.
    """
    here, links = "/", 0
    rest = os.path.join(os.getcwd(), path).split("/")[::-1]
    while rest:
        part = rest.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        place = os.path.join(here, part) if part not in ("", ".") else here
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            return ""  # nobody has put anything there
        if not _is_own(found):
            return f"{place} belongs to another user (uid {found.st_uid})"
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(place)
            rest += target.split("/")[::-1]
            here = "/" if target.startswith("/") else here
            continue
        if found.st_mode & 0o022 and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            return f"other users may write to {place}"
        here = place
    return ""
