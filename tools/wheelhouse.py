"""Write a folder with all wheels, the client and an installer, for machines without a network (`make wheelhouse`).

The wheel of llama-cpp-python runs on every CPU of this architecture.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipapp
import zipfile
from collections.abc import Sequence
from pathlib import Path

from localchat.serving.models.catalog import Catalog
from localchat.serving.models.memory import gigabytes
from localchat.serving.models.model_file import QUANTISATION, ModelFileError, files_of, name_of, summary_of
from tools import vendor
from tools.accelerator import ACCELERATORS, COMPILERS, compiler
from tools.install import LIBRARY, ROOT, InstallError, check_compiler, requirement, run_logged

OFFLINE = Path(__file__).parent / "offline"

# On Linux, ggml builds a variant of its CPU code for each generation of CPUs and loads the best one at run time. Each
# variant is a file beside the library. On other systems ggml's default is used, which requires AVX2 on x86.
VARIANTS = (
    "-DGGML_BACKEND_DL=on -DGGML_CPU_ALL_VARIANTS=on -DCMAKE_INSTALL_BINDIR=llama_cpp/lib -DCMAKE_INSTALL_RPATH=$ORIGIN"
)

# The packages with which pip builds this project.
BUILD_TOOLS = ("setuptools>=77", "wheel")

# The OpenMP library of GCC, which minimal systems lack. The wheel contains a copy.
OPENMP = "libgomp.so.1"


def cmake_args(accelerator: str, system: str, extra: str, has_rpc: bool = False) -> str:
    """The CMake options of a portable build.

    Args:
        accelerator: A key of `ACCELERATORS`.
        system: `sys.platform`.
        extra: Further options, which override the others.
        has_rpc: Whether a model can be on several machines.
    """
    rpc = "-DGGML_RPC=on" if has_rpc else ""
    parts = ["-DGGML_NATIVE=off", VARIANTS if system == "linux" else "", ACCELERATORS[accelerator], rpc, extra]
    return " ".join(filter(None, parts))


def check_accelerator(accelerator: str, path: str) -> None:
    """Check that the compiler for a graphics card is installed. CMake checks its libraries.

    Args:
        accelerator: A key of `ACCELERATORS`.
        path: The value of the environment variable PATH.

    Raises:
        InstallError: The compiler was not found. The message names the package that contains it.
    """
    if accelerator not in COMPILERS:
        return
    program, _, package = COMPILERS[accelerator]
    if compiler(accelerator, path) is None:
        raise InstallError(f"ACCEL={accelerator} needs {program}, which was not found: install {package}")


def add_file(wheel: Path, file: Path, name: str) -> None:
    """Add a file to a wheel, and its line to the RECORD of the wheel."""
    data = file.read_bytes()
    changed = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                content = f"{name},sha256={digest},{len(data)}\n".encode() + content
            new.writestr(entry, content)
        new.writestr(name, data)
    changed.replace(wheel)


class Wheelhouse:
    """Writes the folder. Call the public methods in their order."""

    def __init__(self, folder: Path, extras: str, pythons: Sequence[str], scratch: Path):
        self._folder = folder
        self._wheels = folder / "wheels"
        self._extras = extras
        self._pythons = pythons
        self._scratch = scratch
        self._log = folder.parent / f"{folder.name}.log"
        self._wheels.mkdir(parents=True, exist_ok=True)

    def build_library(self, options: str) -> None:
        """Build llama-cpp-python with these CMake options, unless the folder has that build."""
        built = [*self._wheels.glob("llama_cpp_python-*.whl")]
        if built and self._facts().get("cmake_args") == options:
            print(f"{built[0].name} exists with these options: kept.")
            return
        check_compiler()
        print(f"Building {LIBRARY} with {options}; this takes some minutes.", flush=True)
        pip = self._pip(sys.executable, "wheel", "--verbose", "--no-deps", "--wheel-dir", str(self._scratch))
        # pip's cache may have a build for another CPU.
        command = [*pip, "--no-cache-dir", "--no-binary", LIBRARY, requirement()]
        run_logged(command, f"Building {LIBRARY}", self._log, {**os.environ, "CMAKE_ARGS": options})
        # The old wheel is removed after the build, so that a failed build leaves the folder unchanged.
        for wheel in built:
            wheel.unlink()
        for wheel in self._scratch.glob("llama_cpp_python-*.whl"):
            shutil.move(wheel, self._wheels / wheel.name)
        self._add_openmp()
        # If a later step fails, the next run does not build again.
        (self._folder / "folder.json").write_text(json.dumps({"cmake_args": options}), encoding="utf-8")

    def _add_openmp(self) -> None:
        if sys.platform != "linux":
            return
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
        try:
            done = subprocess.run(
                [*compiler, f"-print-file-name={OPENMP}"], capture_output=True, text=True, check=False
            )
        except OSError:
            return
        path = Path(done.stdout.strip())
        if path.is_absolute() and path.exists():
            (wheel,) = self._wheels.glob("llama_cpp_python-*.whl")
            add_file(wheel, path, f"llama_cpp/lib/{OPENMP}")

    def collect(self) -> None:
        """Build the wheel of localchat, and download the wheels that it needs, for each interpreter."""
        for old in self._wheels.glob("localchat_llama-*.whl"):
            old.unlink()
        # setuptools would take files of an earlier build from the folder `build`, so the sources are copied.
        sources = self._scratch / "sources"
        shutil.copytree(ROOT / "localchat", sources / "localchat", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
            shutil.copy(ROOT / name, sources)
        directory = ["--wheel-dir", str(self._wheels), "--find-links", str(self._wheels)]
        self._run("Building localchat", self._pip(sys.executable, "wheel", *directory, "--no-deps", str(sources)))
        (wheel,) = self._wheels.glob("localchat_llama-*.whl")
        for python in self._pythons:
            pip = self._pip(python, "wheel", *directory, "--only-binary", LIBRARY)
            self._run(f"Collecting wheels for {python}", [*pip, f"{wheel}[{self._extras}]", *BUILD_TOOLS])

    def write_client(self) -> None:
        """Write the client as one file and as a zipapp."""
        vendor.write(self._folder / "chat_client.py", vendor.one_file())
        package = self._scratch / "zipapp" / "localchat"
        ignored = shutil.ignore_patterns("__pycache__", "serving", "server.py", "worker.py")
        shutil.copytree(ROOT / "localchat", package, ignore=ignored)
        zipapp.create_archive(
            package.parent, self._folder / "localchat.pyz", "/usr/bin/env python3", "localchat.__main__:main"
        )

    def add_model(self, name: str) -> str:
        """Put a model of this machine into the folder, with its projectors. Returns its name."""
        folder, new = self._folder / "models", self._folder / "models.new"
        if not name:
            shutil.rmtree(folder, ignore_errors=True)
            return ""
        try:
            model = Catalog().find(name, takes_paths=True)
            if summary_of(model).problem:
                raise ModelFileError(summary_of(model).problem)
        except (ModelFileError, OSError) as error:
            raise InstallError(f"MODEL={name}: {error}") from error
        # A folder of a repository has projectors of its models alone.
        base = "" if "/" in model.name else QUANTISATION.sub("", name_of(model.path)).lower()
        beside = [path for path in model.path.parent.glob("*mmproj*.gguf") if base in path.name.lower()]
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for path in (*files_of(model.path), *beside):
            try:
                os.link(path.resolve(), new / path.name)
            except OSError:  # It is on another disk.
                shutil.copyfile(path, new / path.name)
        (new / "models.json").write_text(json.dumps({model.name: model.path.name}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # After that, since the model may be in it.
        new.rename(folder)
        return model.name

    def write_installer(self, options: str, model: str) -> None:
        """Write the installer, the README and the digests."""
        (wheel,) = self._wheels.glob("localchat_llama-*.whl")
        facts = {
            "version": wheel.name.split("-")[1],
            "extras": self._extras,
            "pythons": sorted({_version(python) for python in self._pythons}, key=lambda text: int(text[2:])),
            "cmake_args": options,
            "model": model,
            "built_on": " ".join([platform.system(), platform.machine(), *filter(None, platform.libc_ver())]),
        }
        (self._folder / "folder.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        for path in OFFLINE.glob("install.*"):
            shutil.copy(path, self._folder)
        (self._folder / "install.sh").chmod(0o755)
        title = f"localchat {facts['version']} for machines without a network"
        text = (OFFLINE / "README.txt").read_text(encoding="utf-8")
        models = [f"{path.name}, {gigabytes(path.stat().st_size)}" for path in self._folder.glob("models/*.gguf")]
        values = {**facts, "pythons": ", ".join(facts["pythons"]), "library": LIBRARY, "openmp": OPENMP}
        (llama,) = (path.name.split("-")[1] for path in self._wheels.glob("llama_cpp_python-*.whl"))
        values |= {"llama": llama, "models": f"{model or 'none'} {'; '.join(models)}"}
        text = text.format(**values, underline="=" * len(title))
        (self._folder / "README.txt").write_text(text, encoding="utf-8")
        files = sorted(path for path in self._folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
        sums = [f"{_digest(path)}  {path.relative_to(self._folder).as_posix()}\n" for path in files]
        (self._folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")

    def _facts(self) -> dict[str, str]:
        path = self._folder / "folder.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def _pip(self, python: str, *arguments: str) -> list[str]:
        """A pip command in a new virtual environment of the interpreter, which itself may lack pip."""
        folder = self._scratch / _version(python)
        command = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        if not command.exists():
            self._run(f"Preparing {python}", [python, "-m", "venv", str(folder)])
        return [str(command), "-m", "pip", "--disable-pip-version-check", *arguments]

    def _run(self, task: str, command: Sequence[str]) -> None:
        run_logged(command, task, self._log)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:  # A model may be larger than the memory.
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _version(python: str) -> str:
    """The minor version of an interpreter, "3.11" for example."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstallError(f"{python} cannot be run: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the folder and return 0, or print what prevents it and return 1."""
    parser = argparse.ArgumentParser(description="Write a folder to install from on machines without a network.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="server,media", help="of pyproject.toml, separated by commas (%(default)s)")
    parser.add_argument("--accel", default="", choices=ACCELERATORS, help="a graphics card to build for")
    parser.add_argument("--rpc", default="", help="not empty: for a model on several machines (no)")
    parser.add_argument("--pythons", default=sys.executable, help="interpreters to collect wheels for (this one)")
    parser.add_argument("--model", default="", help="a model to include: a file, or a name of `--list`")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve()
    cmake = cmake_args(options.accel, sys.platform, os.environ.get("CMAKE_ARGS", ""), bool(options.rpc))
    try:
        check_accelerator(options.accel, os.environ.get("PATH", ""))
        with tempfile.TemporaryDirectory() as scratch:
            wheelhouse = Wheelhouse(folder, options.extras, options.pythons.split(), Path(scratch))
            model = wheelhouse.add_model(options.model)
            wheelhouse.build_library(cmake)
            wheelhouse.collect()
            wheelhouse.write_client()
            wheelhouse.write_installer(cmake, model)
    except InstallError as error:
        print(f"wheelhouse: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"Wrote {folder} ({size / 1e6:.0f} MB). Copy it to the other machine and run install.sh (README.txt).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
