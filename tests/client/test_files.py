"""Files that are written: whole, private, and where they were meant to be."""

import errno
import os
import socket
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localchat import Client, Conversation
from localchat.files import write_file
from tests.support.deadline import DEADLINE_S
from tests.support.documents import run

posix_only = pytest.mark.skipif(os.name != "posix", reason="files of POSIX systems")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_readers_see_whole_files_while_many_threads_write(tmp_path: Path):
    path = tmp_path / "saved.json"
    contents = {bytes([letter]) * 300_000 for letter in b"abcd"}
    write_file(path, b"a" * 300_000)
    written = threading.Event()
    damaged = []

    def read() -> int:
        n_reads = 0
        while not written.is_set():
            n_reads += 1
            if path.read_bytes() not in contents:
                damaged.append(n_reads)
        return n_reads

    def write(content: bytes) -> None:
        for _ in range(25):
            write_file(path, content)

    with ThreadPoolExecutor(6) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        try:
            list(threads.map(write, contents, timeout=DEADLINE_S))
        finally:
            written.set()
        assert all(reader.result(DEADLINE_S) for reader in readers)
    assert damaged == []
    assert names(tmp_path) == ["saved.json"]


def test_conversations_are_saved_by_many_threads(tmp_path: Path):
    path = tmp_path / "saved.json"
    talks = [Conversation(Client(), messages=[{"role": "user", "content": text * 9000}]) for text in "abcd"]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda talk: talk.save(path), talks * 10, timeout=DEADLINE_S))
    assert Conversation.load(path, Client()).messages in [talk.messages for talk in talks]
    assert names(tmp_path) == ["saved.json"]


@posix_only
@pytest.mark.parametrize(("before", "after"), [(None, 0o600), (0o640, 0o640), (0o600, 0o600)])
def test_new_files_are_private_and_others_keep_their_permissions(before: "int | None", after: int, tmp_path: Path):
    path = tmp_path / "saved.json"
    if before is not None:
        path.touch()
        path.chmod(before)
    write_file(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", after)


@posix_only
def test_links_stay_and_the_file_that_they_name_is_written(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    link, dangling = tmp_path / "link", tmp_path / "dangling"
    link.symlink_to("folder/saved.json")
    dangling.symlink_to("folder/later.json")
    (folder / "saved.json").touch()
    for path in (link, dangling):
        write_file(path, b"new")
        assert path.is_symlink()
        assert path.read_bytes() == b"new"
    assert names(folder) == ["later.json", "saved.json"]


@posix_only
def test_only_regular_files_are_replaced(tmp_path: Path):
    fifo, folder, loop, bound = (tmp_path / name for name in ("fifo", "folder", "loop", "socket"))
    os.mkfifo(fifo)
    folder.mkdir()
    loop.symlink_to(loop)
    before = {path: os.lstat(path).st_mode for path in (fifo, folder, loop, Path("/dev/null"), Path("/dev/full"))}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(bound))
        before[bound] = os.lstat(bound).st_mode
        for path, mode in before.items():
            with pytest.raises(FileExistsError, match="no regular file"):
                write_file(path, b"new")
            assert os.lstat(path).st_mode == mode
    assert names(tmp_path) == ["fifo", "folder", "loop", "socket"]


@posix_only
def test_names_that_others_planted_are_not_used(tmp_path: Path):
    """Of earlier versions, the temporary name had the number of the process, which everybody knows."""
    victim, path = tmp_path / "victim", tmp_path / "saved.json"
    victim.write_bytes(b"mine")
    planted = tmp_path / f"saved.json.{os.getpid()}.partial"
    planted.symlink_to(victim)
    write_file(path, b"new")
    assert (victim.read_bytes(), path.read_bytes()) == (b"mine", b"new")
    assert planted.is_symlink()


FULL = """
import errno, resource, signal, sys
from localchat.files import write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_file(sys.argv[1], b"x" * 100_000)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@posix_only
@pytest.mark.parametrize("before", [b"old", None])
def test_full_disk_leaves_the_old_file(before: "bytes | None", tmp_path: Path):
    path = tmp_path / "saved.json"
    if before is not None:
        path.write_bytes(before)
    done = run([sys.executable, "-B", "-c", FULL, path])
    assert (done.stdout, done.stderr) == (f"{errno.errorcode[errno.EFBIG]}\n", "")
    assert names(tmp_path) == ([] if before is None else ["saved.json"])
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("failing", ["fsync", "replace", "chmod"])
def test_interrupted_write_leaves_the_old_file(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "saved.json"
    path.write_bytes(b"old")

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, failing, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    monkeypatch.undo()
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["saved.json"])


def test_path_may_be_relative_bytes_or_as_long_as_names_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for path in ("relative", os.fsencode("as-bytes"), "x" * 255):
        write_file(path, b"new")  # type: ignore[arg-type]
    assert names(tmp_path) == ["as-bytes", "relative", "x" * 255]
