"""The file that a model argument names, why it cannot be loaded, and the model names that requests may use (K34)."""

import errno

import pytest

from localchat.serving.chat.service import Service
from localchat.serving.core.errors import NO_MEMORY, ModelNotFound
from localchat.serving.http.loading import reason_of
from localchat.serving.models.catalog import DEMO_PATH, ModelFile, ModelFileError, model_at


@pytest.fixture
def folder(tmp_path):
    for name in ("one/tiny.gguf", "two/a.gguf", "two/b.gguf", "none/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "parts").mkdir()
    for part in (1, 2):
        (tmp_path / "parts" / f"big-0000{part}-of-00002.gguf").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("argument", "path", "name"),
    [
        pytest.param("one", "one/tiny.gguf", "tiny", id="folder with one model"),
        pytest.param("parts", "parts/big-00001-of-00002.gguf", "big", id="folder with one model in parts"),
        pytest.param("parts/big-00002-of-00002.gguf", "parts/big-00001-of-00002.gguf", "big", id="any part"),
    ],
)
def test_model_argument(folder, argument, path, name):
    assert model_at(str(folder / argument)) == ModelFile(folder / path, name)


def test_file_with_a_name_that_is_not_utf_8_is_found_by_its_listed_name(folder):
    path = folder / "m\udcfcller.gguf"
    try:
        path.touch()
    except OSError:
        pytest.skip("this file system has no such names")
    model = model_at(str(path))
    assert model == ModelFile(path, "m?ller")
    assert model.is_named(model.name.encode().decode())


def test_folder_with_several_models_lists_them_with_their_sizes(folder):
    two = folder / "two"
    (two / "b.gguf").write_bytes(bytes(12_000_000))
    for part in (1, 2):
        (two / f"c-0000{part}-of-00002.gguf").write_bytes(bytes(1_500_000))
    with pytest.raises(ModelFileError) as refused:
        model_at(str(two))
    assert str(refused.value).splitlines() == [
        f"{two} holds 3 models, choose one:",
        f"  {two / 'a.gguf'}  0 MB",
        f"  {two / 'b.gguf'}  12 MB",
        f"  {two / 'c-00001-of-00002.gguf'}  3 MB",
    ]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("no.gguf", r"there is no file .*no\.gguf"),
        ("none", "folder without a model"),
        ("https://example.org/m.gguf", "is a URL.*downloads nothing.*curl -LO https://example.org/m.gguf"),
    ],
)
def test_error_of_an_argument_without_a_model_has_advice(folder, monkeypatch, argument, message):
    monkeypatch.chdir(folder)
    with pytest.raises(ModelFileError, match=message):
        model_at(argument)


@pytest.mark.parametrize(
    ("name", "requested", "is_named"),
    [
        pytest.param("Tiny", " tINY ", True, id="any case"),
        pytest.param("Tiny", " ", True, id="blank"),
        pytest.param("llama", "Llama:8b", True, id="family with a tag"),
        pytest.param("llama:8b", "llama:8b", True, id="tag"),
        pytest.param("tiny", "other", False, id="unknown"),
        pytest.param("llama:8b", "llama", False, id="family without the tag"),
    ],
)
def test_names_of_a_model(name: str, requested: str, is_named: bool):
    assert ModelFile(DEMO_PATH, name).is_named(requested) is is_named


def test_error_of_another_name_gives_both_names():
    service = Service(ModelFile(DEMO_PATH, "tiny"))
    message = "there is no model 'other' here; on offer: 'tiny'; started with --any-name"
    with pytest.raises(ModelNotFound, match=message):
        service.find(" other")


def test_model_may_be_served_under_any_name():
    service = Service(ModelFile(DEMO_PATH, "tiny"), any_name=True)
    assert service.find("gpt-4") is service.default


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), NO_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), NO_MEMORY),
        (OSError(errno.EACCES, "Permission denied"), "[Errno 13] Permission denied"),
        (ImportError("Long advice.\n\nnumpy is broken\n"), "numpy is broken"),
        (ValueError(), "ValueError"),
    ],
    ids=["memory", "ENOMEM", "permission", "last line", "without a text"],
)
def test_reason_why_a_file_cannot_be_loaded_is_one_line(error: Exception, reason: str):
    assert reason_of(DEMO_PATH, error) == f"{DEMO_PATH}: {reason}"
