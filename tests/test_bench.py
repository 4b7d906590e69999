"""The benchmarks: their parsing of responses, and runs against the real server."""

from __future__ import annotations

import argparse
import contextlib
import math
from pathlib import Path
from typing import Any

import pytest

from bench import compare
from bench.loads import Figure, Load
from bench.measure import Dechunker, Refused, Stream, percentile, read_response
from bench.serve import main
from bench.servers import Command, Server, commands
from localchat.serving.models.catalog import DEMO_PATH

from .live import running_server

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
]


def chunked(part: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(part), part)


def test_response_has_the_times_of_its_content_and_the_count_of_the_server():
    reads = [(1.0 + i, chunked(event)) for i, event in enumerate(EVENTS)]
    response = read_response(Stream(0.5, [(0.9, HEAD), *reads, (9.0, chunked(b""))]))
    assert (response.n_tokens, response.first_s, response.gaps_s, response.text) == (3, 1.5, [1.0], "ab")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_chunk_framing_is_removed_at_any_cut(size: int):
    data = HEAD + b"".join(chunked(event) for event in EVENTS) + chunked(b"")
    dechunker = Dechunker()
    body = b"".join(dechunker.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert body == b"".join(EVENTS)


def test_refused_request_is_an_error():
    with pytest.raises(Refused, match="404"):
        Dechunker().feed(b"HTTP/1.1 404 Not Found\r\n\r\n")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (EVENTS[:2], "was cut"),
        ([*EVENTS[:2], b'data: {"error":{"message":"no memory"}}\n\n', EVENTS[-1]], "no memory"),
    ],
)
def test_cut_or_failed_response_is_an_error(events: list[bytes], words: str):
    reads = [(1.0 + i, chunked(event)) for i, event in enumerate(events)]
    with pytest.raises(Refused, match=words):
        read_response(Stream(0.5, [(0.9, HEAD), *reads, (9.0, b"")]))


def test_percentiles():
    assert [percentile([1.0, 2.0, 3.0, 4.0], percent) for percent in (0, 50, 95, 100)] == [1.0, 3.0, 4.0, 4.0]


def test_real_server_is_measured(capsys: pytest.CaptureFixture[str]):
    with running_server() as url:
        main([f"one={url}", f"two={url}", "--streams", "2", "--requests", "2", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[0] in ("one", "two")]
    assert len(rows) == 2
    assert all(float(row[1]) > 0 for row in rows)
    assert rows[0][-1] == "1.00"


def test_comparison_measures_every_kind_of_load(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The loads are chat, choices, constraints, embeddings, and the resources of the process."""
    loads = ["decode4", "busy20x1", "n8", "tools", "embeddings", "memory", "start", "idle"]
    monkeypatch.setattr("bench.loads.SYSTEM", "a short system prompt")
    sizes = ["--tokens", "4", "--slots", "4", "--ctx", "0", "--threads", "1", "--rounds", "1"]
    compare.main([str(DEMO_PATH), "--servers", "localchat", *sizes, "--loads", *loads])
    out, err = capsys.readouterr()
    assert err == ""
    rows = out.splitlines()[2:]
    labels = [compare.label(load, figure) for load in loads for figure in compare.LOADS[load].figures]
    assert [row.startswith(label) for label, row in zip(labels, rows)] == [True] * len(labels)
    assert all(float(row.split()[-1]) > 0 for row in rows if "gap" not in row)


MORE, LESS = Figure("", "tokens/s", True), Figure("", "ms", False)


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "expected"),
    [
        (MORE, [20.0, 30.0], [10.0, 10.0], "2.50"),
        (LESS, [20.0, 20.0], [10.0, 30.0], "1.00"),
        (LESS, [math.nan], [1.0], "-"),
        # The first round has no value of ours and counts for neither; the machine is slower in the second.
        (MORE, [math.nan, 10.0], [20.0, 10.0], "1.00"),
    ],
)
def test_ratio_above_1_means_that_ours_is_better(figure: Figure, ours: list[float], theirs: list[float], expected: str):
    assert compare.ratio(figure, ours, theirs) == expected


def test_another_checkout_runs_in_its_own_folder(tmp_path: Path):
    package = tmp_path / "localchat"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "server.py").touch()
    found = commands(str(DEMO_PATH), 1, 512, 1, against=str(tmp_path))
    assert found["against"].folder == str(tmp_path)
    assert found["localchat"].folder is None


def test_failed_load_has_no_value_in_its_round(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    rounds = iter([[], [3.0]])  # The load fails in the first round, with an IndexError.
    load = Load("a load", (LESS,), lambda *arguments: (next(rounds)[0],))
    monkeypatch.setitem(compare.LOADS, "start", load)
    monkeypatch.setattr(compare, "running", lambda *command: contextlib.nullcontext(Server("ours", "", 0, 0.0)))
    monkeypatch.setattr(compare, "first_model", lambda url: "m")
    monkeypatch.setattr(compare, "run_load", lambda *load: None)
    values: compare.Values = {"start": {"ours": []}}
    options = argparse.Namespace(loads=["start"])
    for _ in range(2):
        compare.measure_all("ours", Command([]), False, options, values)
    assert str(values["start"]["ours"]) == "[(nan,), (3.0,)]"
    compare.report(["ours"], values)
    out, err = capsys.readouterr()
    assert "start: " in err
    assert out.split()[-1] == "3.0"


def test_comparison_explains_its_loads(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        compare.main(["--help"])
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and load.name in out for name, load in compare.LOADS.items())
