"""No response of any endpoint has a path of this machine, whatever is wrong with a model; the log has it."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.core.errors import InferenceError, UnusableAdapter
from localchat.serving.core.server_options import Options
from localchat.serving.core.text import without_folders
from localchat.serving.loading.loader import Loader
from localchat.serving.loading.service import Service
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.model_file import DEMO_PATH, ModelFile
from tests.support.endpoint_requests import MODEL_REQUESTS, STREAMED
from tests.support.exchanges import ask
from tests.support.serving import served

# What the mapping file says of each model, and a part of its error for clients. The files are in the folder, except
# those that are missing.
BROKEN = {
    "text": ({"path": "text.gguf"}, "not a GGUF file"),
    "cut": ({"path": "cut.gguf"}, "it was cut"),
    "gone": ({"path": "gone.gguf"}, "No such file or directory"),
    "templated": ({"path": "demo.gguf", "template": "gone.jinja"}, "gone.jinja"),
    "seeing": ({"path": "demo.gguf", "mmproj": "text.gguf"}, "text.gguf"),
    "sql": ({"path": "based.gguf", "adapters": {"sql": "text.gguf"}}, "text.gguf: not a GGUF file"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secret") / "my models (1), it's"
    folder.mkdir()
    demo = DEMO_PATH.read_bytes()
    for name, data in (("text", b"text"), ("cut", demo[:70_000]), ("demo", demo), ("based", demo)):
        (folder / f"{name}.gguf").write_bytes(data)
    mapping = {("base" if name == "sql" else name): settings for name, (settings, _) in BROKEN.items()}
    (folder / "models.json").write_text(json.dumps(mapping))
    return folder


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    options = Options(port=0, n_parallel=1, n_ctx=256)
    catalog = Catalog([folder], environment={"HOME": str(folder)})
    catalog.models()
    with contextlib.closing(Loader(options)) as loader:
        service = Service(ModelFile(DEMO_PATH, "demo"), options, catalog=catalog, load=loader.load)
        with served(service, options) as (server, _):
            yield server.server_port
            service.stop()


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.items() if isinstance(value, dict) else value:
            yield from texts_in(list(item) if isinstance(item, tuple) else item)


@pytest.mark.parametrize("name", BROKEN)
def test_no_response_has_a_path_of_the_machine(port: int, folder: Path, name: str, caplog: pytest.LogCaptureFixture):
    """Clients get the reason with the names of files, the log has the paths."""
    caplog.set_level(logging.INFO)
    requests: list[tuple[str, Any]] = [(path, {"model": name, **fields}) for path, fields in MODEL_REQUESTS.items()]
    responses = [(path, *ask(port, path, body)) for path, body in requests]
    for path, status, body in responses:
        if path != "/api/show":  # It needs no loaded model.
            assert status in (500, 501), path
            assert BROKEN[name][1] in " ".join(texts_in(body)), path
    requests = [(path, {"model": name, "stream": True, **MODEL_REQUESTS[path]}) for path in STREAMED]
    requests += [(f"{path}?model={name}", None) for path in ("/props", "/slots", "/lora-adapters")]
    requests += [(path, {"model": name}) for path in ("/models/load", "/models/unload")]
    pages = ("/v1/models", f"/v1/models/{name}", "/api/tags", "/api/ps", "/", "/health", "/metrics", "/v1")
    requests += [(path, None) for path in pages]
    responses += [(path, *ask(port, path, body)) for path, body in requests]
    for path, _, body in responses:
        for text in texts_in(body):
            for private in (str(folder), folder.name, folder.parent.name, str(DEMO_PATH.parent), f"{Path.home()}/"):
                assert private not in text, path
    assert str(folder) in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ann/x.gguf: not a model", "x.gguf: not a model"),
        ("cannot open '/home/ann/my models/x.gguf' (No such file)", "cannot open 'x.gguf' (No such file)"),
        ('cannot open "/a (1)/it\'s/x.gguf": it is /z', 'cannot open "x.gguf": it is z'),
        ("/a, b; c:d/x.gguf: it was cut", "x.gguf: it was cut"),
        ("/a/b.gguf: build it (docs/install.md)", "b.gguf: build it (docs/install.md)"),
        ("C:\\Users\\ann\\x.gguf: cut", "x.gguf: cut"),
        ("C:/Users/ann/x.gguf", "x.gguf"),
        ("\\\\server\\share\\x.gguf", "x.gguf"),
        ("failed (/usr/lib/python3/os.py, line 5)", "failed (os.py, line 5)"),
        ("5 tokens/s, 3 / 4, and/or, https://example.org/a/b, docs/install.md", None),
        ("no path", None),
    ],
)  # fmt: skip
def test_absolute_paths_become_names(text: str, expected: str | None):
    assert without_folders(text) == (text if expected is None else expected)
    for error_class in (InferenceError, UnusableAdapter):
        error = error_class(text)
        assert (error.message, str(error), str(text) in repr(error.body())) == (
            without_folders(text), text, expected is None
        )  # fmt: skip
