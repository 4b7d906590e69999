"""`--get`: models by name from a stand-in for Hugging Face's hub, which is a real HTTP server on this machine."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.models.catalog import Catalog
from localchat.serving.models.hub import HubFile, chosen, projector, quantisations
from localchat.serving.models.model_file import DEMO_PATH, ModelFileError
from tests.serving.models.test_gguf import STRING, file_of
from tests.support.command import run_command
from tests.support.deadline import DEADLINE_S
from tests.support.documents import ROOT, run
from tests.support.hub_server import COMMIT, Fault, Hub, digest_of
from tests.support.live import started
from tests.support.serving import wait_for
from tests.support.slow_servers import silent

MODEL = DEMO_PATH.read_bytes()
PROJECTOR = file_of([("general.type", STRING, "mmproj")])

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None, reason="huggingface_hub is not installed (extra `hub`)"
)


def files(*names: str, n_bytes: int = 10) -> list[HubFile]:
    return [HubFile(name, n_bytes, "0" * 64) for name in names]


# --- the choice of files ---


def test_models_of_a_repository_are_those_of_its_files_by_quantisation():
    found = quantisations(
        files("README.md", "mmproj-F16.gguf", "a-imatrix.gguf", "a-Q4_K_M.gguf", "UD/a-iq4_xs.gguf")
        + files("BF16/a-BF16-00002-of-00002.gguf", "BF16/a-BF16-00001-of-00002.gguf")
        + files("a-Q8_0.gguf", "b-Q8_0.gguf", "plain.gguf")
        + files("c-Q6_K/c-00001-of-00002.gguf", "c-Q6_K/c-00002-of-00002.gguf", "c-F16/c-00001-of-00001.gguf")
    )
    assert {tag: [file.name for file in parts] for tag, parts in found.items()} == {
        "Q4_K_M": ["a-Q4_K_M.gguf"],
        "IQ4_XS": ["UD/a-iq4_xs.gguf"],
        "BF16": ["BF16/a-BF16-00001-of-00002.gguf", "BF16/a-BF16-00002-of-00002.gguf"],
        "a-Q8_0": ["a-Q8_0.gguf"],
        "b-Q8_0": ["b-Q8_0.gguf"],
        "plain": ["plain.gguf"],
        "Q6_K": ["c-Q6_K/c-00001-of-00002.gguf", "c-Q6_K/c-00002-of-00002.gguf"],
        "F16": ["c-F16/c-00001-of-00001.gguf"],
    }


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], ["mmproj-F16.gguf"]),
        (["model-mmproj-Q8_0.gguf"], ["model-mmproj-Q8_0.gguf"]),
        (["model-F16.gguf", "mmproj.txt"], []),
    ],
    ids=["F16 of several", "the only one", "none"],
)
def test_projector(names: list[str], taken: list[str]):
    assert [file.name for file in projector(files(*names))] == taken


SIZES = {"IQ2_M": 20, "Q3_K_M": 30, "Q4_K_M": 40, "Q6_K": 60, "Q8_0": 80, "BF16": 160}
OFFERED = {tag: files(f"model-{tag}.gguf", n_bytes=n * 10**6) for tag, n in SIZES.items()}


@pytest.mark.parametrize(
    ("wanted", "n_free", "tag", "reason"),
    [
        ("", 1000, "Q8_0", "the largest from Q4 to Q8 within 80% of the 1.0 GB that are free on the GPU"),
        ("", 100, "Q8_0", "the largest"),
        ("", 99, "Q6_K", "the largest"),
        ("", 50, "Q4_K_M", "the largest"),
        ("q3_k_m", 0, "Q3_K_M", "as named"),
        ("model-bf16", 0, "BF16", "as named"),
    ],
)
def test_quantisation_is_the_named_one_or_the_largest_that_fits(wanted: str, n_free: int, tag: str, reason: str):
    found = chosen(OFFERED, wanted, lambda: (n_free * 10**6, "on the GPU"))
    assert (found[0], found[1].startswith(reason)) == (tag, True)


@pytest.mark.parametrize(("wanted", "tag"), [("UD-Q4_K_XL", "UD-Q4_K_XL"), ("q4_k_xl", "UD-Q4_K_XL"), ("Q8_0", "Q8_0")])
def test_dynamic_quantisation_has_two_names(wanted: str, tag: str):
    models = quantisations(files("a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf", "a-UD-Q8_0.gguf"))
    assert set(models) == {"UD-Q4_K_XL", "Q8_0", "UD-Q8_0"}
    assert chosen(models, wanted, lambda: (10**9, "here"))[0] == tag


@pytest.mark.parametrize(
    ("wanted", "problem"), [("", "there is none from Q4 to Q8 within 80% of the 40 MB"), ("Q5", "Q5")]
)
def test_error_of_a_quantisation_offers_all(wanted: str, problem: str):
    with pytest.raises(ModelFileError, match=rf"{problem}.* of BF16 \(0\.2 GB\), Q8_0 \(80 MB\), Q6_K"):
        chosen(OFFERED, wanted, lambda: (40 * 10**6, "here"))


# --- the command ---


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "localchat.server", *arguments]


def environment(home: Path, hub: Hub | None = None, **variables: str) -> dict[str, str]:
    """Variables of a user with this home folder, and of the hub."""
    own = {"HOME": str(home), "HF_HOME": str(home / "hf"), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return {**own, **(hub.environment if hub else {}), **variables}


# The exit status is the number of failures. A busy machine may need longer than the limit for a real hub.
GET = """
import sys
from localchat.server import main
from localchat.serving.models import hub
hub.REACH_S = {}
sys.exit(sum(main(["--get", name]) for name in sys.argv[1:]))
"""


def get(home: Path, *names: str, hub: Hub | None = None, reach_s: float = 30, **variables: str) -> Any:
    """Fetch these models in a new process, since the library reads its variables when it is imported."""
    done = run([sys.executable, "-c", GET.format(reach_s), *names], **environment(home, hub, **variables))
    assert "Traceback" not in done.stderr
    return done


def blobs(home: Path, name: str) -> Path:
    return home / "hf" / "hub" / f"models--{name.replace('/', '--')}" / "blobs"


@needs_library
def test_model_with_its_parts_and_projector_is_in_the_cache_of_the_hub(tmp_path: Path):
    parts = {f"big-Q4_K_M-0000{i}-of-00002.gguf": MODEL[:-1] + bytes([i]) for i in (1, 2)}
    with Hub({"org/Big-GGUF": {**parts, "mmproj-F16.gguf": PROJECTOR, "big-F16.gguf": b"no"}}, token="secret") as hub:
        done = get(tmp_path, "https://huggingface.co/org/Big-GGUF", "org/Big-GGUF:q4_k_m", hub=hub)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"serve it: {sys.executable} -m localchat.server org/Big-GGUF:Q4_K_M\n" * 2
    assert "Q4_K_M, the largest from Q4 to Q8 within 80% of the " in done.stderr
    snapshot = blobs(tmp_path, "org/Big-GGUF").parent / "snapshots" / COMMIT
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == {**parts, "mmproj-F16.gguf": PROJECTOR}
    assert (snapshot.parents[1] / "refs" / "main").read_text() == COMMIT
    # The token is for the hub alone, not for the host with the contents.
    tokens = {(request.path.startswith("/cdn/"), request.headers.get("authorization")) for request in hub.requests}
    assert tokens == {(True, None), (False, "Bearer secret")}
    assert hub.ranges() == [""] * 3  # The second time nothing is transferred.
    assert Catalog(environment=environment(tmp_path)).find("org/Big-GGUF").source == "Hugging Face"


@needs_library
def test_download_that_was_killed_goes_on_where_it_ended(tmp_path: Path):
    data = MODEL + bytes(25_000_000)
    with Hub({"org/big": {"big-Q8_0.gguf": data}}) as hub:
        # The library writes blocks of 10 MiB.
        fault = Fault("/cdn/", n_bytes=11_000_000, released=threading.Event())
        hub.faults.append(fault)
        variables = {**os.environ, **environment(tmp_path, hub)}
        with subprocess.Popen(command("--get", "org/big"), env=variables, stderr=subprocess.DEVNULL) as process:
            assert hub.sent.wait(DEADLINE_S)
            part = blobs(tmp_path, "org/big") / f"{digest_of(data)}.incomplete"
            wait_for(lambda: part.exists() and part.stat().st_size >= 10 << 20, DEADLINE_S)
            process.kill()
        fault.released.set()
        n_here = part.stat().st_size
        done = get(tmp_path, "org/big", hub=hub)
        assert done.returncode == 0, done.stderr
        assert hub.ranges() == ["", f"bytes={n_here}-"]
    assert (blobs(tmp_path, "org/big") / digest_of(data)).read_bytes() == data
    assert not part.exists()


@needs_library
def test_broken_transfers_and_a_limit_of_requests_are_repeated(tmp_path: Path):
    data = MODEL + bytes(25_000_000)
    with Hub({"org/small": {"small.gguf": data}}) as hub:
        # The library writes blocks of 10 MiB.
        hub.faults += [Fault("/cdn/", n_bytes=11_000_000), Fault("/resolve/", status=429, headers={"Retry-After": "1"})]
        hub.faults += [Fault("/cdn/", n_bytes=11_000_000)]
        done = get(tmp_path, "org/small", hub=hub)
        assert done.returncode == 0, done.stderr
        assert hub.ranges() == ["", f"bytes={10 << 20}-", f"bytes={20 << 20}-"]
    assert (blobs(tmp_path, "org/small") / digest_of(data)).read_bytes() == data


@needs_library
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_terminal_shows_the_size_and_the_time_left(tmp_path: Path):
    import fcntl
    import struct
    import termios

    terminal, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with Hub({"org/small": {"small.gguf": MODEL + bytes(25_000_000)}}) as hub, open(terminal, "rb", 0) as output:
        variables = {**os.environ, **environment(tmp_path, hub)}
        with subprocess.Popen(command("--get", "org/small"), env=variables, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            limit = threading.Timer(DEADLINE_S, process.kill)
            limit.start()
            shown = b""
            with contextlib.suppress(OSError):  # The terminal ends with the process.
                while part := output.read(4096):
                    shown += part
            limit.cancel()
        assert process.returncode == 0
    size = rf"{(len(MODEL) + 25_000_000) / 1e6:.1f}M"
    assert re.search(rf"small.gguf: +\d+%\|.*/{size} \[\d\d:\d\d<\d\d:\d\d, +[\d.]+MB/s\]", shown.decode()), shown


@needs_library
def test_damaged_file_is_removed(tmp_path: Path):
    with Hub({"org/small": {"small.gguf": MODEL}}) as hub:
        hub.faults += [Fault("/cdn/", is_damaged=True)]
        done = get(tmp_path, "org/small", "org/small", hub=hub)
    assert (done.returncode, done.stdout.count("serve it: ")) == (1, 1)
    assert "small.gguf arrived damaged and was removed: run the same command again" in done.stderr
    assert [path.name for path in blobs(tmp_path, "org/small").iterdir()] == [digest_of(MODEL)]


FAILURES = {
    "org/smoll-GGUF": r"has no such repository, or it is private; did you mean org/small-GGUF\?",
    "other/Small-GGUF": r"did you mean org/small-GGUF\?",
    "small-GGUF": r"expected PUBLISHER/REPOSITORY.*did you mean org/small-GGUF\?",
    "org/small": r"no GGUF files; did you mean org/small-GGUF\?",
    "org/small-GGUF:Q2_K": r"there is no Q2_K: choose one of Q4_0 \(4 MB\)",
    "org/gated-GGUF": r"gated: accept the terms at \S+/org/gated-GGUF, and set HF_TOKEN to your token",
    "org/limited-GGUF": r"returns status 429: .* later, or set HF_TOKEN to your token",
    "org/failing-GGUF": r"returns status 500: run the same command again later",
    "org/portal-GGUF": r"check the address http://127.0.0.1:\d+ \(HF_ENDPOINT\) and the space in .* \(HF_HUB_CACHE\)",
    "org/huge-GGUF": r"has [\d.]+ GB of the 1000000.0 GB: free some space, or set HF_HUB_CACHE.*",
}
SMALL = {"small-Q4_0.gguf": MODEL}
REPOSITORIES = {"org/small-GGUF": SMALL, "org/small": {"README.md": b"x"}, "org/gated-GGUF": SMALL}


@needs_library
def test_failure_is_one_line_that_says_what_to_do(tmp_path: Path):
    with Hub({**REPOSITORIES, "org/huge-GGUF": {"huge-Q4_0.gguf": b"x"}}, gated="org/gated-GGUF") as hub:
        hub.sizes["huge-Q4_0.gguf"] = 10**15
        hub.faults += [Fault("/org/limited-GGUF", status=429), Fault("/org/failing-GGUF", status=500)]
        hub.faults += [Fault("/org/portal-GGUF", status=200)]  # As a page to log in to a network, it is no JSON.
        done = get(tmp_path, *FAILURES, hub=hub)
    assert (done.returncode, done.stdout) == (len(FAILURES), "")
    lines = [line for line in done.stderr.splitlines() if " fetching " not in line]
    assert len(lines) == len(FAILURES), done.stderr
    for line, message in zip(lines, FAILURES.values()):
        assert re.search(f"^localchat.server: .*{message}$", line)


@needs_library
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"HF_TOKEN": "wrong"}, r"returns status 401: set HF_TOKEN to a valid token, or unset it$"),
        ({"HF_HUB_OFFLINE": "1"}, r"offline mode is enabled.*HF_HUB_OFFLINE"),
    ],
    ids=["wrong token", "offline mode"],
)
def test_variable_that_prevents_a_download_is_named(tmp_path: Path, variables: dict[str, str], message: str):
    with Hub(REPOSITORIES, token="right") as hub:
        done = get(tmp_path, "org/small-GGUF", hub=hub, **variables)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert re.search(message, done.stderr)


@needs_library
def test_model_that_is_here_is_served_without_a_network(tmp_path: Path):
    with Hub({"org/small": {"small-Q4_0.gguf": MODEL}}) as hub:
        assert get(tmp_path, "org/small", hub=hub).returncode == 0
    done = get(tmp_path, "org/small", hub=hub)
    assert done.returncode == 0
    assert done.stdout.endswith(" -m localchat.server org/small\n")
    assert "check the network" in done.stderr
    assert done.stderr.endswith("org/small is here already\n")


@needs_library
@pytest.mark.parametrize("is_silent", [True, False], ids=["no response", "no server"])
def test_no_network_is_reported_within_seconds(tmp_path: Path, is_silent: bool):
    with silent() as port:
        url = f"http://127.0.0.1:{port if is_silent else 1}"
        start = time.monotonic()
        done = get(tmp_path, "org/small", "small", reach_s=1, HF_ENDPOINT=url)
        seconds = time.monotonic() - start
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert f"org/small: no connection to {url}, or no response within 1 s (" in first
    assert second.endswith("got 'small'")
    assert seconds < 60  # The imports may take long on a busy machine; the library alone waits for a minute.


def test_missing_library_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    done = run_command("--get", "org/small")
    advice = f"which is not installed: {sys.executable} -m pip install huggingface_hub\n"
    assert (done.returncode, done.stderr) == (1, f"localchat.server: --get needs huggingface_hub, {advice}")


# --- without --get ---

WATCH = """
import os, sys
def watch(event, arguments):
    if arguments and arguments[0] == "127.0.0.1":  # The address to listen on.
        return
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname") or (
        event == "import" and arguments[0] in ("huggingface_hub", "httpx", "httpx2", "requests", "urllib3")
    ):
        with open(os.environ["WATCH_FILE"], "a") as file:
            file.write(f"{event} {arguments}\\n")
sys.addaudithook(watch)
"""


def test_server_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An audit hook in the server and its engine process writes every connection and look-up of a name to a file."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    watched = tmp_path / "watched"
    variables = environment(tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", WATCH_FILE=str(watched))
    probe = "import socket\ntry: socket.create_connection(('127.0.0.1', 1))\nexcept OSError: pass"
    run([sys.executable, "-c", probe], **variables)
    assert "socket.connect" in watched.read_text()
    watched.unlink()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with started(command("--port", "0")) as server:
        chat = [sys.executable, "-m", "localchat", "--base-url", server.url, "What is your name?"]
        assert "localchat" in run(chat, PYTHONPATH=str(ROOT)).stdout
    assert not watched.exists() or watched.read_text() == ""
