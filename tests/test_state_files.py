"""Prefixes in files: a file gives the whole state that was written or nothing, and the size of all is limited."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from localchat.serving.engine.state_files import SavedPrefix, StateFiles

TOKENS = list(range(1000, 1040))
DATA = bytes(range(256)) * 4


def files_in(folder: Path, key: str = "a model", max_bytes: int = 1 << 20, *, can_truncate: bool = True) -> StateFiles:
    return StateFiles(folder, key, max_bytes, can_truncate=can_truncate)


def found(files: StateFiles, tokens: list[int]) -> SavedPrefix:
    prefix = files.find(tokens)
    assert prefix is not None
    return prefix


def test_saved_prefix_is_read_by_the_same_and_a_later_instance(tmp_path: Path):
    files = files_in(tmp_path / "new" / "folder")
    files.write(TOKENS, DATA)
    for reader in (files, files_in(tmp_path / "new" / "folder")):
        prefix = found(reader, [*TOKENS, 1, 2])
        assert prefix.tokens == TOKENS
        assert reader.read(prefix) == DATA


@pytest.mark.parametrize("can_truncate", [True, False])
def test_longest_common_prefix_is_found_and_only_a_whole_one_without_truncation(tmp_path: Path, can_truncate: bool):
    files = files_in(tmp_path, can_truncate=can_truncate)
    files.write([1, 2, 3, 4, 5, 6], b"long")
    files.write([1, 2, 9], b"other")
    common = files.find([1, 2, 3, 4, 7])
    assert (common and common.tokens) == ([1, 2, 3, 4, 5, 6] if can_truncate else None)
    assert found(files, [1, 2, 9, 7]).tokens == [1, 2, 9]
    assert files.find([7]) is None


def test_longer_prefix_replaces_its_own_prefixes(tmp_path: Path):
    files = files_in(tmp_path)
    files.write([1, 2], b"short")
    files.write([3], b"other")
    files.write([1, 2, 3], b"long")
    assert len(list(tmp_path.iterdir())) == 2
    assert files.read(found(files, [1, 2])) == b"long"


def test_longer_prefix_replaces_nothing_without_truncation(tmp_path: Path):
    files = files_in(tmp_path, can_truncate=False)
    files.write([1, 2, 3], b"short")
    files.write([1, 2, 3, 4], b"long")
    assert len(list(tmp_path.iterdir())) == 2
    assert files.read(found(files, [1, 2, 3])) == b"short"


def test_same_prefix_again_is_one_file(tmp_path: Path):
    files = files_in(tmp_path)
    files.write(TOKENS, DATA)
    files.write(TOKENS, DATA[::-1])
    assert len(list(tmp_path.iterdir())) == 1
    assert files.read(found(files, TOKENS)) == DATA[::-1]


def test_files_of_another_key_are_not_found(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files_in(tmp_path, "one").write(TOKENS, DATA)
    assert files_in(tmp_path, "other").find(TOKENS) is None
    assert files_in(tmp_path, "one").find(TOKENS) is not None
    assert caplog.messages == []


def test_file_with_any_changed_byte_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files_in(tmp_path).write(TOKENS[:5], DATA[:20])
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        caplog.clear()
        files = files_in(tmp_path)
        prefix = files.find(TOKENS[:5])
        if prefix is not None:
            assert files.read(prefix) is None
            assert files.find(TOKENS[:5]) is None
        # A changed key may be that of another model, which is not logged.
        assert len(caplog.messages) <= 1
    path.write_bytes(content)
    assert files_in(tmp_path).read(SavedPrefix(path, TOKENS[:5])) == DATA[:20]


def test_file_that_changed_after_the_start_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files = files_in(tmp_path)
    files.write(TOKENS, DATA)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    assert files.read(found(files, TOKENS)) is None
    assert [path.name in message for message in caplog.messages] == [True]


@pytest.mark.parametrize("n_left", [0, 1, 17, 18, 40, 100, 300, -500, -33, -32, -1])
def test_truncated_file_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture, n_left: int):
    files_in(tmp_path).write(TOKENS, DATA)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:n_left])
    assert files_in(tmp_path).find(TOKENS) is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"something else",
        b"localchat state 1\n",
        b"localchat state 1\nnot json\n",
        b"localchat state 1\n" + b"[" * 60_000,
        b"localchat state 1\n[]\n",
        b'localchat state 1\n{"key": 1, "n_tokens": 2, "n_bytes": 3}\n',
        b'localchat state 1\n{"key": "a model", "n_tokens": -2, "n_bytes": 3}\n',
        b'localchat state 1\n{"key": "a model", "n_tokens": 1000000000000, "n_bytes": 3}\n1234',
        b"localchat state 1\n" + b"x" * 100_000,
    ],
)
def test_file_of_another_kind_is_ignored_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
):
    (tmp_path / f"{'0' * 32}.state").write_bytes(content)
    files = files_in(tmp_path)
    assert files.find(TOKENS) is None
    assert len(caplog.messages) == 1
    assert "is ignored" in caplog.messages[0]
    files.write(TOKENS, DATA)
    assert files.find(TOKENS) is not None


def test_least_recently_used_file_is_removed_at_the_limit(tmp_path: Path):
    files = files_in(tmp_path, max_bytes=4000)
    for i in range(3):
        files.write([i], DATA)
        os.utime(found(files, [i]).path, ns=(i, i))
    assert files.read(found(files, [0])) == DATA  # This makes it the most recently used.
    files.write([3], DATA)
    assert [files.find([i]) is not None for i in range(4)] == [True, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000


def test_files_of_other_models_count_towards_the_limit_and_are_removed(tmp_path: Path):
    other = files_in(tmp_path, "other")
    other.write(TOKENS, DATA)
    os.utime(found(other, TOKENS).path, ns=(1, 1))
    files = files_in(tmp_path, max_bytes=2 * len(DATA))
    files.write([1], DATA)
    assert other.read(found(other, TOKENS)) is None
    assert files.read(found(files, [1])) == DATA


def test_files_of_other_kinds_are_never_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    names = ["notes.txt", "my.state", "0123.state", f"{'0' * 32}.state.bak"]
    for name in names:
        (tmp_path / name).write_bytes(DATA * 10)
    files = files_in(tmp_path, max_bytes=2 * len(DATA))
    for i in range(4):
        files.write([i], DATA)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in names) == sorted(names)
    assert caplog.messages == []


def test_state_larger_than_the_limit_is_not_written_and_removes_nothing(tmp_path: Path):
    files = files_in(tmp_path, max_bytes=2 * len(DATA))
    files.write([1], DATA)
    files.write([2], DATA * 3)
    assert files.find([2]) is None
    assert files.read(found(files, [1])) == DATA


def test_old_partial_files_are_removed_and_new_ones_are_not(tmp_path: Path):
    old, new = tmp_path / "localchat-part-old", tmp_path / "localchat-part-new"
    old.write_bytes(DATA)
    new.write_bytes(DATA)
    os.utime(old, (1, 1))
    files_in(tmp_path)
    assert [path.exists() for path in (old, new)] == [False, True]


def test_full_disk_is_only_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    files = files_in(tmp_path)
    monkeypatch.setattr("os.replace", full)
    files.write(TOKENS, DATA)
    assert "could not be saved" in caplog.messages[0]
    assert files.find(TOKENS) is None


def test_file_that_another_server_removed_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files = files_in(tmp_path)
    files.write(TOKENS, DATA)
    prefix = found(files, TOKENS)
    prefix.path.unlink()
    assert files.read(prefix) is None
    assert files.find(TOKENS) is None
    assert caplog.records == [] or all(record.levelno < logging.WARNING for record in caplog.records)


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):  # noqa: PT011  # which one depends on the system
        files_in(tmp_path / "file" / "folder")
