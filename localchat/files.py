"""Write a file so that it is always whole, private, and where it was meant to be."""

from __future__ import annotations

import contextlib
import errno
import os
import stat


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write the data to a file, which other processes see with its old content or with all of the new one.

    A new file can be read by its owner only; an existing one keeps its permissions. A symbolic link stays, and the file
    that it names is written. After an error, such as a full disk, the old file is unchanged.

    Raises:
        FileExistsError: The path is no regular file but, for example, a device, a named pipe or a folder.
        OSError: The file cannot be written.
    """
    import tempfile  # Few programs save anything, and the import takes some ms.

    target = os.path.realpath(os.fsdecode(path))
    permissions = _permissions(target)
    # The name is random and the file is created exclusively, so that nobody else can have the file or a link there.
    descriptor, temporary = tempfile.mkstemp(prefix=".localchat-", suffix=".partial", dir=os.path.dirname(target))
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            # Otherwise a crash of the machine could leave an empty file: the new name may reach the disk first.
            os.fsync(descriptor)
        if permissions is not None:
            os.chmod(temporary, permissions)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def _permissions(target: str) -> int | None:
    """The permissions of an existing regular file; None if there is no file."""
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, "this is no regular file, and is not replaced: name another one", target)
    return mode & 0o777
