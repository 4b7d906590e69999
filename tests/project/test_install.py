"""The installer of `make`: its messages about what is missing, and its progress reports."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.models.test_gguf import STRING, TENSORS, file_of
from tests.support.documents import ROOT, run
from tests.support.raw_responses import HELLO
from tests.support.raw_server import always
from tests.support.wheels import write_wheel
from tools import install, wheelhouse
from tools.install import packages_for

OFFLINE = ROOT / "tools" / "offline" / "install.py"
SCRIPTS = re.findall(r'^(localchat\S*) = "(\S+):(\w+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    ("platform_name", "os_release", "command"),
    [
        ("linux", 'NAME="Linux Mint"\nID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt install build-essential"),
        ("linux", 'ID="rhel"\nID_LIKE="fedora"\n', "dnf install gcc-c++"),
        ("darwin", "", "xcode-select --install"),
        ("win32", "", "winget install Microsoft.VisualStudio.2022.BuildTools"),
    ],
)
def test_advice_names_the_packages_of_the_system(platform_name, os_release, command):
    advice = packages_for(platform_name, os_release)
    assert command in advice
    assert "\n" not in advice


def test_wheelhouse_beside_the_project_is_found_unless_a_variable_says_otherwise(tmp_path, monkeypatch):
    for folder in ("wheelhouse", "other"):
        (tmp_path / folder / "wheels").mkdir(parents=True)
    monkeypatch.setattr(install, "ROOT", tmp_path / "project")
    monkeypatch.delenv("WHEELHOUSE", raising=False)
    assert install.find_wheelhouse() == tmp_path / "wheelhouse"
    for named, found in ((str(tmp_path / "other"), tmp_path / "other"), ("", None)):
        monkeypatch.setenv("WHEELHOUSE", named)
        assert install.find_wheelhouse() == found


def test_options_of_a_wheelhouse_for_several_machines():
    args = wheelhouse.cmake_args("cuda", "win32", "-DX=1", True)
    assert args == "-DGGML_NATIVE=off -DGGML_CUDA=on -DGGML_RPC=on -DX=1"
    done = run(["make", "--dry-run", "wheelhouse", "RPC=1"], cwd=ROOT)
    assert "--rpc '1'" in done.stdout
    assert "--extras 'server,media'" in done.stdout


@pytest.mark.parametrize(
    ("platform_name", "machine", "environment", "flags"),
    [
        ("linux", "x86_64", {}, "-mtune=generic"),
        ("linux", "x86_64", {"CFLAGS": "-mtune=native", "CXXFLAGS": "-mtune=native"}, "-mtune=generic -mtune=native"),
        ("linux", "aarch64", {"CFLAGS": "-g"}, None),
        ("darwin", "x86_64", {}, None),
        ("win32", "AMD64", {}, None),
    ],
)
def test_a_build_for_this_cpu_is_tuned_for_all_where_that_is_faster(platform_name, machine, environment, flags):
    expected = {} if flags is None else {"CFLAGS": flags, "CXXFLAGS": flags}
    assert install.compiler_flags(platform_name, machine, environment) == expected


def test_make_installs_what_decodes_images_and_sound():
    for target in ("run", "test"):
        done = run(["make", "--dry-run", "--always-make", target], cwd=ROOT, MAKEFLAGS="")
        assert re.search(r"tools\.install \S+ server,media\b", done.stdout), done.stdout


@pytest.mark.skipif(os.name != "posix", reason="on Windows, compilers are not in PATH")
@pytest.mark.parametrize("is_there", [False, True])
def test_missing_or_broken_compiler_is_reported(is_there, tmp_path):
    if is_there:
        (tmp_path / "c++").write_text("#!/bin/sh\necho 'vector: no such file' >&2\nexit 1\n")
        (tmp_path / "c++").chmod(0o755)
    command = [sys.executable, "-c", "import tools.install as i; i.check_compiler()"]
    done = run(command, PATH=str(tmp_path), PYTHONPATH=str(ROOT))
    message = done.stderr.rpartition("InstallError: ")[2]
    assert message.startswith("c++ cannot compile C++: vector" if is_there else "no C++ compiler was found")
    assert "install" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "cp: error writing 'x': No space left on device",
            r"no space is left \(\d+ MB in /.*, \d+ MB in /.*\): free some",
        ),
        ("OSError: [Errno 13] Permission denied: '/x'", "no permission to write, as the log says"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "no memory is left: end other programs"),
    ],
)
def test_machine_that_lacks_something_is_reported_in_one_line_and_ends_the_installation(output, reason, tmp_path):
    command = [sys.executable, "-c", f"print({output!r}); print('x' * 99); exit(1)"]
    with pytest.raises(install.MachineError, match=f"^Building failed after 0:0.: {reason}") as error:
        install.run_logged(command, "Building", tmp_path / "log")
    assert "\n" not in str(error.value)


def test_place_where_nothing_can_be_installed_is_refused_at_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    assert install.main([str(tmp_path / "file" / "venv"), "server"]) == 1
    monkeypatch.setattr(install, "NEEDED_BYTES", 1 << 60)
    assert install.main([str(tmp_path / "venv"), "server"]) == 1
    impossible, full = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"install: cannot create /.*: Not a directory: .* make VENV=FOLDER", impossible)
    assert re.fullmatch(r"install: no space for /.*: \d+ MB are free, 1099511627776 MB are needed; .*", full)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("  Downloading numpy-2.0.whl (16 MB)\n", "downloading"),
        ("*** Configuring CMake...\n", "configuring"),
        ("[12/240] Building CXX object\n", "step 12/240"),
        ("  [ 37%] Building CXX object\n", "37%"),
        ("Installing collected packages: numpy, jinja2\n", "installing"),
        ("  Using cached numpy-2.0.whl\n", None),
    ],
)
def test_progress_names_the_step_of_pip_and_of_the_build(line, step):
    assert install.step_of(line) == step


def test_old_python_is_refused_in_one_line(tmp_path):
    old = tmp_path / "python"
    # This interpreter runs the check with an older version number.
    old.write_text(f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 8, 18)\nexec(sys.argv[2])\n")
    old.chmod(0o755)
    done = run(["make", "--silent", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", "run"])
    assert done.returncode == 2
    assert done.stderr.startswith("localchat needs Python 3.9 or newer; name one that is installed: make PYTHON=")
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("variables", "commands"),
    [
        ([], ["localchat.server  "]),
        (["MODEL=x.gguf", "ARGS=--port 1"], ["localchat.server x.gguf --port 1"]),
        (["GET=a/b"], ["localchat.server --get a/b", "localchat.server a/b "]),
    ],
    ids=["nothing", "file", "fetched"],
)
def test_run_fetches_a_model_only_if_it_is_told_to(variables, commands):
    done = run(["make", "--dry-run", "run", *variables], GET="from/environment", ARGS="", MAKEFLAGS="")
    assert re.findall(r"python -m (localchat\.server.*)", done.stdout) == commands


def test_package_has_priority_over_a_folder_of_its_name(tmp_path: Path):
    """The folder of the clone has this name: a script beside it would import that folder."""
    (tmp_path / "localchat").mkdir()
    done = run([sys.executable, "-c", "from localchat import Client"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_both_console_commands_run():
    assert [command for command, _, _ in SCRIPTS] == ["localchat", "localchat-server"]
    for _, module, function in SCRIPTS:
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        done = run([sys.executable, "-c", code, "--version"])
        assert (done.returncode, done.stdout.split()[0]) == (0, "localchat")


@pytest.mark.parametrize("name", ["localchat.pyz", "chat_client.py"])
def test_client_in_the_folder_is_a_program(name, tmp_path):
    wheelhouse.Wheelhouse(tmp_path / "folder", "server", [], tmp_path).write_client()
    with always(HELLO) as server:
        done = run([sys.executable, "-I", "-S", tmp_path / "folder" / name, "hi"], OPENAI_BASE_URL=server.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello\n", "")


def offline_install(folder: Path, sums: str, **facts: object) -> subprocess.CompletedProcess[str]:
    """Write the files of the installer beside the wheels, and run it."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (folder / "install.py").write_bytes(OFFLINE.read_bytes())
    (folder / "folder.json").write_text(json.dumps({"pythons": [own], "extras": "server", **facts}))
    (folder / "SHA256SUMS").write_text(sums)
    return run([sys.executable, folder / "install.py", folder / "my programs"])


def test_offline_installer_installs_the_wheels_and_the_model_of_its_folder(tmp_path):
    folder = tmp_path / "my folder"
    (folder / "wheels").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "models" / "small.gguf").write_bytes(b"model")
    write_wheel(folder / "wheels", "localchat_llama", "1.0", "localchat")
    write_wheel(folder / "wheels", "llama_cpp_python", "1.0", "llama_cpp")
    target = folder / "my programs"
    models = target / "share" / "localchat" / "models"
    models.mkdir(parents=True)
    (models / "old.gguf").write_bytes(b"the model of an earlier folder")
    done = offline_install(folder, "", model="org/small:Q4_0")
    assert (done.returncode, done.stdout.endswith("localchat-server org/small:Q4_0\n")) == (0, True), done.stderr
    python = target / ("Scripts" if os.name == "nt" else "bin") / "python"
    assert run([python, "-I", "-c", "import localchat, llama_cpp"]).returncode == 0
    assert [path.name for path in models.iterdir()] == ["small.gguf"]


@pytest.fixture
def cached(tmp_path, monkeypatch) -> Path:
    """A snapshot in Hugging Face's cache with a split model and a projector, which links to the contents."""
    snapshot = tmp_path / ".cache/huggingface/hub/models--org--small-GGUF/snapshots/c0ffee"
    snapshot.mkdir(parents=True)
    for name in ("small-Q4_0-00001-of-00002.gguf", "small-Q4_0-00002-of-00002.gguf", "mmproj-F16.gguf"):
        kind = [("general.type", STRING, "mmproj" if "mmproj" in name else "model")]
        (tmp_path / name).write_bytes(file_of(kind, TENSORS, bytes(4096)))
        (snapshot / name).symlink_to(tmp_path / name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return snapshot


@pytest.mark.skipif(os.name != "posix", reason="the cache has links")
def test_model_in_the_folder_has_its_parts_projector_and_name(tmp_path, cached):
    kit = wheelhouse.Wheelhouse(tmp_path / "folder", "server", [], tmp_path)
    assert kit.add_model("org/small-GGUF:q4_0") == "org/small-GGUF"
    models = tmp_path / "folder" / "models"
    names = sorted(path.name for path in cached.iterdir())
    assert sorted(path.name for path in models.iterdir()) == sorted([*names, "models.json"])
    assert not any(path.is_symlink() for path in models.iterdir())
    assert json.loads((models / "models.json").read_text()) == {"org/small-GGUF": "small-Q4_0-00001-of-00002.gguf"}
    # A file beside other models, and one that is in the folder itself.
    for name in ("other-Q8_0.gguf", "mmproj-other.gguf", "mmproj-third.gguf"):
        (tmp_path / name).write_bytes(file_of(tensors=TENSORS, data=bytes(4096)))
    for file in (tmp_path / "other-Q8_0.gguf", models / "other-Q8_0.gguf"):
        assert kit.add_model(str(file)) == "other-Q8_0"
        assert {path.name for path in models.iterdir()} == {"other-Q8_0.gguf", "mmproj-other.gguf", "models.json"}
    assert kit.add_model("") == ""
    assert not models.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/none", "MODEL=org/none: there is no model .*; to fetch it: python -m localchat.server --get org/none"),
        ("/nowhere/x.gguf", "MODEL=/nowhere/x.gguf: there is no file /nowhere/x.gguf"),
        (str(ROOT / "README.md"), "README.md: not a GGUF file"),
    ],
    ids=["unknown", "no file", "no model"],
)
def test_model_that_cannot_be_in_the_folder_is_refused(tmp_path, name, message):
    with pytest.raises(install.InstallError, match=message):
        wheelhouse.Wheelhouse(tmp_path / "folder", "server", [], tmp_path).add_model(name)


@pytest.mark.parametrize(
    ("facts", "content", "message"),
    [
        ({"pythons": ["3.1"]}, b"whole", "this folder is for Python 3.1, this is 3."),
        ({}, b"cut", "x.whl is damaged: copy the folder again"),
        ({}, None, "x.whl is missing: copy the folder again"),
    ],
    ids=["other Python", "damaged", "missing"],
)
def test_offline_installer_refuses_a_folder_that_cannot_be_installed(facts, content, message, tmp_path):
    (tmp_path / "wheels").mkdir()
    if content is not None:
        (tmp_path / "wheels" / "x.whl").write_bytes(content)
    done = offline_install(tmp_path, f"{hashlib.sha256(b'whole').hexdigest()}  wheels/x.whl\n", **facts)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "my programs").exists()
