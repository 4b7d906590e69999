"""Write files as a whole, readable by their owner only; and the files of conversations."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from .texts import finite


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


def write_messages(path: str | os.PathLike[str], messages: Sequence[Mapping[str, Any]]) -> None:
    """Write messages as JSON to a file; see `write_file`. Raises TypeError or ValueError if they are not JSON."""
    try:
        text = json.dumps({"messages": messages}, ensure_ascii=False, indent=1, allow_nan=False)
    except RecursionError:
        raise ValueError("the messages cannot be saved: they are nested too deeply") from None
    # A lone surrogate, which models can generate, becomes an escape of JSON: UTF-8 cannot encode it.
    write_file(path, text.encode(errors="backslashreplace"))


def read_messages(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The messages of a file with messages or a list of messages as JSON. Raises ValueError for any other file."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            saved = json.load(file, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is not a saved conversation: {error}") from error
    messages = saved.get("messages") if isinstance(saved, dict) else saved
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError(f"{os.fspath(path)} is not a saved conversation: it has no list of messages")
    return messages
