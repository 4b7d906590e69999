"""Create the virtual environment and install localchat with llama-cpp-python, from a wheel or from source.

`make` calls it: `python -m tools.install .venv server,media,test`. It needs only Python's standard library and pip.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from tools.accelerator import ACCELERATORS, GPU, backend_for, compiler, find_gpu, wheel_index

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "llama-cpp-python"

# The author's indexes of prebuilt wheels, below which each has a name. LLAMA_CPP_INDEX replaces them; empty: build.
INDEXES = "https://abetlen.github.io/llama-cpp-python/whl/"

# The index of all other packages, and the time limit of a try to reach a server.
PACKAGES_INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple/")
REACH_S = 5

# The time between two progress reports, on a terminal and elsewhere.
TERMINAL_PERIOD_S, LOG_PERIOD_S = 1.0, 30.0

# The size of a new environment. A build needs more, in the folder for temporary files.
NEEDED_BYTES = 200 << 20

# How many lines of the log are shown when a command failed.
SHOWN_LINES = 15

# The command of each system that installs a C++ compiler, CMake and Python's venv, by ID in /etc/os-release or by
# `sys.platform`.
PACKAGES = {
    "debian": ("Debian, Ubuntu", "sudo apt install build-essential cmake python3-venv"),
    "fedora": ("Fedora, RHEL", "sudo dnf install gcc-c++ make cmake python3"),
    "arch": ("Arch", "sudo pacman -S base-devel cmake python"),
    "alpine": ("Alpine", "sudo apk add build-base linux-headers cmake python3"),
    "suse": ("openSUSE", "sudo zypper install gcc-c++ make cmake python3"),
    "darwin": ("macOS", "xcode-select --install"),
    "win32": (
        "Windows",
        'winget install Microsoft.VisualStudio.2022.BuildTools --override "--add '
        'Microsoft.VisualStudio.Workload.VCTools --includeRecommended --passive"',
    ),
}


# The beginnings of lines of pip and scikit-build-core, and the step that each reports.
STEPS = {
    "Downloading ": "downloading",
    "*** Configuring CMake": "configuring",
    "Installing collected packages": "installing",
}

# What the output of pip or a compiler says if the machine lacks something, and the reason in words.
LACKS = {
    r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b": "no space is left",
    r"Permission denied|Errno 13\b|Read-only file system|Errno 30\b|Operation not permitted": "no permission to write",
    r"Killed signal terminated program|Cannot allocate memory|out of memory allocating": "no memory is left",
}


class InstallError(Exception):
    """The installation failed. The message says why and what to do."""


class MachineError(InstallError):
    """The machine lacks space, memory or a permission, so that no other source of packages would help."""


def packages_for(platform_name: str, os_release: str) -> str:
    """The command that installs the build tools on this system; the commands of all systems if it is unknown.

    Args:
        platform_name: `sys.platform`.
        os_release: The text of /etc/os-release, empty if there is no such file.
    """
    names = [platform_name]
    for key in ("ID", "ID_LIKE"):
        match = re.search(rf'^{key}="?([^"\n]*)', os_release, re.MULTILINE)
        names += match.group(1).split() if match else []
    for name in names:
        family = {"rhel": "fedora", "centos": "fedora", "ubuntu": "debian"}.get(name, name.partition("-")[0])
        family = "suse" if family in ("opensuse", "sles") else family
        if family in PACKAGES:
            system, command = PACKAGES[family]
            return f"on {system}: {command}"
    return "".join(f"\n  on {system}: {command}" for system, command in PACKAGES.values())


def _packages_here() -> str:
    release = Path("/etc/os-release")
    return packages_for(sys.platform, release.read_text(encoding="utf-8") if release.exists() else "")


def check_compiler() -> None:
    """Check that a C++ compiler can compile a short program.

    Raises:
        InstallError: There is no C++ compiler, or it has no standard library.
    """
    if sys.platform == "win32":
        # Visual Studio need not be in PATH: CMake finds it by itself.
        finder = Path(os.environ.get("PROGRAMFILES(X86)", "C:")) / "Microsoft Visual Studio/Installer/vswhere.exe"
        if not (finder.exists() or any(map(shutil.which, ("cl", "g++", "clang++")))):
            raise InstallError(f"no C++ compiler was found: {_packages_here()}")
        return
    compilers = [os.environ["CXX"].split()] if os.environ.get("CXX") else [["c++"], ["g++"], ["clang++"]]
    reason = f"no C++ compiler was found ({', '.join(command[0] for command in compilers)})"
    for command in compilers:
        try:
            done = subprocess.run(
                [*command, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"],
                input="#include <vector>\nint main() { return std::vector<int>().size(); }\n",
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return
        reason = f"{command[0]} cannot compile C++: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}"
    raise InstallError(f"{reason}: {_packages_here()}")


def compiler_flags(platform_name: str, machine: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a build for this CPU gets its flags: those of the user after that of the project.

    llama.cpp is compiled with `-march=native`, which also makes gcc order and unroll the instructions for this CPU, or
    for what it takes for this CPU. With its tuning for all x86 CPUs, and the same instructions, long prompts are faster
    (bench/README.md); elsewhere it was not measured.
    """
    if platform_name != "linux" or machine != "x86_64":
        return {}
    return {name: f"-mtune=generic {environment.get(name, '')}".strip() for name in ("CFLAGS", "CXXFLAGS")}


def step_of(line: str) -> str | None:
    """The progress that a line of output reports, or None: "step 12/240" (Ninja), "37%" (make) or a step of pip."""
    match = re.search(r"^\s*(?:\[(\d+/\d+)\] |\[ *(\d+%)\] )", line)
    if match:
        return f"step {match.group(1)}" if match.group(1) else str(match.group(2))
    return next((step for text, step in STEPS.items() if line.strip().startswith(text)), None)


class Progress:
    """Shows elapsed time, step and log file: one changing line on a terminal, elsewhere a new line per period."""

    def __init__(self, task: str, log: Path):
        self._task, self._log = task, log
        self._start = time.monotonic()
        self._is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_s = 0.0

    @property
    def elapsed(self) -> str:
        """Minutes and seconds since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        return f"{minutes}:{seconds:02}"

    def show(self, step: str) -> None:
        """Show the step, unless the last report is more recent than the period."""
        now = time.monotonic() - self._start
        if now - self._shown_s < (TERMINAL_PERIOD_S if self._is_terminal else LOG_PERIOD_S):
            return
        self._shown_s = now
        text = f"{self._task}: {self.elapsed}, {step}; log: {self._log}"
        if self._is_terminal:
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        else:
            print(text, flush=True)

    def end(self) -> None:
        """Remove the line from the terminal."""
        if self._is_terminal:
            print("\r\x1b[K", end="", flush=True)


def run_logged(command: Sequence[str], task: str, log: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command, write its output to the log, show its progress, and return its output.

    Raises:
        MachineError: The command failed since the machine lacks something.
        InstallError: The command failed otherwise. The message has the last lines of the output.
    """
    progress = Progress(task, log)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    output: list[str] = []
    step = "starting"
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        threading.Thread(target=_put_lines, args=(process.stdout, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=TERMINAL_PERIOD_S)
            except queue.Empty:
                progress.show(step)
                continue
            if line is None:
                break
            file.write(line)
            output.append(line)
            step = step_of(line) or step
            progress.show(step)
    progress.end()
    if process.returncode:
        if reason := lacking("".join(output), log.parent):
            raise MachineError(f"{task} failed after {progress.elapsed}: {reason}; log: {log}")
        raise InstallError(f"{task} failed after {progress.elapsed}. From {log}:\n{''.join(shown_lines(output))}")
    return "".join(output)


def lacking(output: str, folder: Path) -> str:
    """What the machine lacks by the output of a command that wrote into this folder, and what to do; else empty."""
    reason = next((reason for pattern, reason in LACKS.items() if re.search(pattern, output)), "")
    if reason == "no space is left":
        temporary = Path(tempfile.gettempdir())
        free = ", ".join(f"{shutil.disk_usage(place).free >> 20} MB in {place}" for place in (folder, temporary))
        return f"{reason} ({free}): free some; TMPDIR=FOLDER names another place for temporary files"
    if reason == "no permission to write":
        return f"{reason}, as the log says: install as the user to whom {folder} and the project belong"
    return reason and f"{reason}: end other programs, or build with one process: CMAKE_BUILD_PARALLEL_LEVEL=1 make run"


def shown_lines(output: list[str]) -> list[str]:
    """The lines of a failed command's output to show: from the first error of CMake on, else the last ones."""
    first = next((i for i, line in enumerate(output) if "CMake Error" in line), len(output) - SHOWN_LINES)
    return output[max(first, 0) :][:SHOWN_LINES]


def unusable(message: str) -> str:
    """Why no wheel of a source can be used, by pip's error message."""
    if "NewConnectionError" in message or "ConnectTimeoutError" in message:
        return "cannot be reached"
    return "does not have all that is needed for this platform"


def requirement() -> str:
    """The requirement of pyproject.toml for llama-cpp-python, with its versions."""
    match = re.search(rf'^server = \["({LIBRARY}[^"]*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert match, "pyproject.toml has no extra named server"
    return match.group(1)


def _put_lines(stream: Iterable[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


class Environment:
    """The virtual environment, and what is installed in it."""

    def __init__(self, folder: Path, extras: str):
        self._folder = folder
        self._python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        self.wanted = ["--editable", f".[{extras}]"]  # What pip installs.
        self._log = folder / "install.log"
        self._is_offline = find_wheelhouse() is None and not reachable(PACKAGES_INDEX)

    def create(self) -> None:
        """Create the virtual environment if it does not exist."""
        if self._runs("import pip"):
            return
        print(f"Installing localchat into {self._folder}. The first time, this takes up to some minutes.", flush=True)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            elsewhere = "copy localchat to a folder of your own, or name another one: make VENV=FOLDER"
            raise InstallError(f"cannot create {self._folder}: {error.strerror}: {elsewhere}") from error
        free = shutil.disk_usage(self._folder).free
        if free < NEEDED_BYTES:
            sizes = f"{free >> 20} MB are free, {NEEDED_BYTES >> 20} MB are needed"
            raise InstallError(f"no space for {self._folder}: {sizes}; another place: make VENV=FOLDER")
        done = subprocess.run(
            [sys.executable, "-m", "venv", str(self._folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            output = (done.stdout + done.stderr).strip()
            if reason := lacking(output, self._folder):
                raise MachineError(f"cannot create {self._folder}: {reason}")
            raise InstallError(f"cannot create {self._folder}: {output}\n{_packages_here()}")

    def has_library(self) -> bool:
        """Whether llama-cpp-python is installed and can be loaded."""
        return self._runs("import llama_cpp")

    def install_binary(self, *source: str) -> str:
        """Install the project with the installed llama-cpp-python, or with a prebuilt wheel.

        Args:
            source: Options of pip that name a source of prebuilt wheels.

        Returns:
            Why no wheel can be used; empty if the installation succeeded.
        """
        try:
            self._pip("Installing", "install", "--only-binary", LIBRARY, *source, *self.wanted)
        except MachineError:
            raise
        except InstallError as error:
            return unusable(str(error))
        if self.has_library():
            return ""
        self._pip("Removing it", "uninstall", "--yes", LIBRARY)
        return f"has a wheel of {LIBRARY} that cannot be loaded on this machine"

    def install_from_source(self, cmake_args: str) -> None:
        """Install the project and build llama-cpp-python with these CMake options, without any for this CPU."""
        check_compiler()
        if cmake_args or not self.has_library():  # Else only another package is missing.
            details = f" with {cmake_args}" if cmake_args else ", unless pip's cache has a build"
            print(f"Building {LIBRARY} from source{details}: this takes minutes.", flush=True)
        # pip's cache may hold a build with other options.
        options = ["--no-cache-dir", "--no-binary", LIBRARY] if cmake_args else []
        start = time.monotonic()
        command = ["install", "--verbose", *options, *self.wanted]
        try:
            flags = compiler_flags(sys.platform, platform.machine(), os.environ)
            output = self._pip(f"Building {LIBRARY}", *command, CMAKE_ARGS=cmake_args, **flags)
        except MachineError:
            raise
        except InstallError as error:
            if self._is_offline:
                reason = f"there is no network: {PACKAGES_INDEX} cannot be reached within {REACH_S} s"
                advice = "docs/install.md, Without a network, says how to install from a folder"
                raise InstallError(f"{reason}; {advice}; log: {self._log}") from error
            raise
        if f"Building wheel for {LIBRARY}" in output:
            print(f"{LIBRARY} was built from source in {time.monotonic() - start:.0f} s; log: {self._log}")
        else:
            print(f"{LIBRARY} was built from source earlier: pip had the wheel in its cache.")
        if not self.has_library():
            raise InstallError(f"{LIBRARY} cannot be loaded; {self._python} -c 'import llama_cpp' says why")

    def _pip(self, task: str, *arguments: str, **environment: str) -> str:
        pip = [str(self._python), "-m", "pip", "--disable-pip-version-check"]
        if self._is_offline:  # Otherwise pip tries for minutes. The variable is read by the resolver of glibc.
            pip += ["--timeout", str(REACH_S), "--retries", "0"]
            environment["RES_OPTIONS"] = "timeout:2 attempts:1"
        return run_logged([*pip, *arguments], task, self._log, {**os.environ, **environment})

    def _runs(self, code: str) -> bool:
        try:
            return subprocess.run([str(self._python), "-c", code], capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def install(folder: Path, extras: str, index: str | None = None, *, replaces: bool = False) -> None:
    """Install the project with these extras in the virtual environment.

    Args:
        folder: The virtual environment, created if it does not exist.
        extras: Extras of pyproject.toml, separated by commas.
        index: The URL of an index of prebuilt wheels of llama-cpp-python; empty to build from source; None: one of the
            author, for the GPU of this machine or for the CPU.
        replaces: Whether to replace a llama-cpp-python that is installed.
    """
    environment = Environment(folder, extras)
    environment.create()
    had_library = environment.has_library()
    is_new = replaces or not had_library
    if replaces and had_library:
        environment.wanted = ["--force-reinstall", "--no-deps", requirement()]
    cmake_args, accelerator = os.environ.get("CMAKE_ARGS", ""), os.environ.get("ACCEL", "")
    if accelerator not in ACCELERATORS:
        raise InstallError(f"ACCEL={accelerator} is unknown: use one of {', '.join(filter(None, ACCELERATORS))}")
    wheelhouse, advice = None if replaces else find_wheelhouse(), ""
    is_chosen = is_new and index is None and not cmake_args and wheelhouse is None and accelerator != "cpu"
    if is_chosen and sys.platform != "darwin":  # There, Metal is the default.
        advice = _install_for_gpu(environment, accelerator)
        if not advice:
            return
        if (replaces or accelerator) and environment.has_library() == had_library:
            raise InstallError(advice)
    index = INDEXES + ("metal" if sys.platform == "darwin" else "cpu") if index is None else index
    # CMAKE_ARGS have no effect on a prebuilt wheel.
    sources = [] if cmake_args and is_new else _sources(wheelhouse, index)
    for source, options in chain(sources, [] if is_new and (cmake_args or index) else [("pip's index", [])]):
        reason = environment.install_binary(*options)
        if not reason:
            if is_new:
                print(f"{LIBRARY} is a prebuilt wheel of {source}.")
                print(advice or "To build it for this CPU: make clean run WHEELHOUSE= LLAMA_CPP_INDEX=")
            return
        print(f"{source} {reason}.")
    environment.install_from_source(cmake_args)
    print(advice, end="\n" if advice else "")


def _install_for_gpu(environment: Environment, backend: str) -> str:
    """Install llama-cpp-python for an accelerator, or "": for the GPU that is found. Returns what prevents it."""
    path = os.environ.get("PATH", "")
    gpu = GPU("", f"ACCEL={backend}") if backend else find_gpu(path)
    if gpu is None:
        return "No GPU was found (nvidia-smi, vulkaninfo, /dev/dri). For one that is there: make gpu ACCEL=vulkan"
    if not gpu.has_driver:
        return f"{gpu.name} is not used: install its driver (nvidia-smi finds none), then: make gpu"
    backend, advice = backend_for(gpu, backend, path)
    index = wheel_index(backend, path)
    for source, options in _sources(None, index and INDEXES + index):
        reason = environment.install_binary(*options)
        if not reason:
            print(f"{LIBRARY} is a prebuilt wheel for {gpu.name}, of {source}.")
            return ""
        print(f"{source} {reason}.")
    if compiler(backend, path) is None:
        return f"{gpu.name} is not used: {advice}, then: make gpu"
    try:
        environment.install_from_source(ACCELERATORS[backend])
    except MachineError:
        raise
    except InstallError as error:
        return f"{error}\n{gpu.name} is not used, since this build failed; later: make gpu"
    return ""


def _sources(wheelhouse: Path | None, index: str) -> Iterator[tuple[str, list[str]]]:
    """The sources of prebuilt wheels, each with its name in messages and the options of pip."""
    if wheelhouse:
        yield str(wheelhouse), ["--no-index", "--find-links", str(wheelhouse / "wheels")]
    if index and reachable(index):
        yield index, ["--extra-index-url", index]
    elif index:
        print(f"The index of prebuilt wheels, {index}, cannot be reached within {REACH_S} s.", flush=True)


def reachable(url: str) -> bool:
    """Whether a server responds within `REACH_S`. The search for its address has no limit, so a process does it."""
    code = "import sys, urllib.request as u\ntry: u.urlopen(sys.argv[1])\nexcept u.HTTPError: pass"
    with contextlib.suppress(subprocess.TimeoutExpired):
        command = [sys.executable, "-c", code, url]
        return subprocess.run(command, capture_output=True, timeout=REACH_S, check=False).returncode == 0
    return False


def find_wheelhouse() -> Path | None:
    """The folder that WHEELHOUSE names, else one named `wheelhouse` in or beside the project, else None.

    An empty WHEELHOUSE turns the search off.
    """
    named = os.environ.get("WHEELHOUSE")
    candidates = [ROOT / "wheelhouse", ROOT.parent / "wheelhouse"] if named is None else [Path(named or os.devnull)]
    return next((folder.resolve() for folder in candidates if (folder / "wheels").is_dir()), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install and return 0, or print what prevents it and return 1."""
    parser = argparse.ArgumentParser(description="Install localchat in a virtual environment.")
    parser.add_argument("folder", type=Path, help="the virtual environment, created if it does not exist")
    parser.add_argument("extras", help="extras of pyproject.toml, separated by commas: server,media,test")
    parser.add_argument("--replace", action="store_true", help="replace llama-cpp-python, by default for the GPU")
    options = parser.parse_args(arguments)
    try:
        install(options.folder.resolve(), options.extras, os.environ.get("LLAMA_CPP_INDEX"), replaces=options.replace)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"install: {lacking(str(error), ROOT) or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
