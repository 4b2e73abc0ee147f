"""File access that does not trust existing files: reads only regular files, replaces atomically, checks ownership.

No function blocks on another process, as opening a FIFO would.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

OWN = "the file and the folders on the way to it must be yours or root's, and no other user may write to them"
"""The hint about a file that is `distrusted`."""
MAX_BYTES = 2**28
"""Maximum size of a file that is read."""
_CHUNK = 2**20
_LINKS = 40
"""Maximum number of symbolic links in a path; Linux has the same limit."""
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def is_file(path: str | Path) -> bool:
    """True if the path names a regular file; False also for names that no file can have."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def kind(path: str | Path) -> str:
    """Return the kind of a path that is not a regular file, such as "a folder"; "" for a file or if nothing exists."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except (OSError, ValueError):
        return ""


def reason(error: Exception) -> str:
    """Return the reason of an I/O error, without the name of the file."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def shown(text: str) -> str:
    """Return the text with surrogates, as file names may contain, escaped, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def lines_of(text: str) -> list[str]:
    """Split a source text into lines at `\\n`, `\\r\\n` and `\\r` as Python does, not at other Unicode separators."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def read(path: str | Path) -> bytes:
    """Return the bytes of a regular file. Raises OSError if it is anything else or larger than MAX_BYTES."""
    handle = open_regular(path, os.O_RDONLY)
    try:
        data = bytearray()
        while more := os.read(handle, _CHUNK):
            data += more
            if len(data) > MAX_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES} bytes")
        return bytes(data)
    finally:
        os.close(handle)


def open_regular(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of a regular file, without blocking. Raises OSError if the path is anything else.

    With O_CREAT, an existing file must belong to this user or to root.
    """
    try:
        _require_regular(os.stat(path))  # before opening, because opening a device may have effects
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    try:
        status = os.fstat(handle)
        _require_regular(status)
        if flags & os.O_CREAT and not _is_own(status):  # another user may have created it meanwhile
            raise PermissionError(errno.EPERM, "it belongs to another user")
    except OSError:
        os.close(handle)
        raise
    return handle


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL, f"it is {what}, not a file")


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically; several processes may do so at once. Raises OSError.

    mode: permissions of the new file before the umask is applied.
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
    """Write to a path that the user named: a new or existing file, a device, or a FIFO. Raises OSError.

    A FIFO without a reader is an error, not a wait.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    except OSError as error:
        if error.errno == errno.ENXIO and kind(path) == "a FIFO":
            raise OSError(errno.ENXIO, "no process reads this FIFO") from None
        raise
    with open(handle, "wb") as file:
        os.set_blocking(handle, True)
        file.write(data)


def make_folder(path: Path) -> None:
    """Create a missing folder and its missing parents, writable only by this user. Raises OSError."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(0o755)
        except FileExistsError:
            if not path.is_dir():
                raise


def distrusted(path: str | Path) -> str:
    """Return the reason why users other than this one and root could create or modify a file; "" if they cannot.

    Every folder and every link of the path is checked. A folder with the sticky bit is safe: other users cannot
    replace entries that they do not own. Raises OSError if the path cannot be resolved.
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
            status = os.lstat(place)
        except FileNotFoundError:
            return ""  # nothing exists there yet
        if not _is_own(status):
            return f"{place} belongs to another user (uid {status.st_uid})"
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(place)
            rest += target.split("/")[::-1]
            here = "/" if target.startswith("/") else here
            continue
        if status.st_mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            return f"other users may write to {place}"
        here = place
    return ""
