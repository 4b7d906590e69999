"""The choice of a GPU by `make`: stand-ins for the tools of drivers and compilers, in a PATH that has nothing else, and
real installations by pip from indexes on this machine."""

import os
import runpy
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.raw_responses import with_length
from tests.support.raw_server import Request, serving
from tests.support.slow_servers import silent
from tests.support.wheels import write_sources, write_wheel
from tools.accelerator import COMPILERS, GPU, backend_for, find_gpu, wheel_index

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-ins are shell scripts")

NVIDIA_SMI = "GPU 00000000:00:1E.0\n    Product Name                          : NVIDIA H100 80GB HBM3\n"
VULKANINFO = """
GPU0:
	vendorID           = 0x10005
	deviceType         = PHYSICAL_DEVICE_TYPE_CPU
	deviceName         = llvmpipe (LLVM 15.0.6, 256 bits)
"""
RADEON = """GPU1:
	vendorID           = 0x1002
	deviceType         = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
	deviceName         = AMD Radeon RX 7900 XTX (RADV)
"""
NVCC = "Cuda compilation tools, release {}, V{}.88"
H100 = GPU("NVIDIA", "NVIDIA H100 80GB HBM3")


def stand_ins(folder: Path, **texts: str | None) -> str:
    """A PATH with programs that print these texts, or fail."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        path = folder / name.replace("_", "-").replace("cxx", "c++")
        path.write_text("#!/bin/sh\nexit 1\n" if text is None else f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\n")
        path.chmod(0o755)
    return str(folder)


def pci(root: Path, *devices: tuple[str, str, bool]) -> Path:
    """A root folder with devices: their class, their vendor, and whether they have a device file."""
    (root / "dev" / "dri").mkdir(parents=True)
    for i, (kind, vendor, has_file) in enumerate(devices):
        folder = root / "sys/bus/pci/devices" / f"0000:00:0{i}.0"
        (folder / "drm" / f"renderD{128 + i}").mkdir(parents=True)
        (folder / "class").write_text(f"{kind}\n")
        (folder / "vendor").write_text(f"{vendor}\n")
        if has_file:
            (root / "dev" / "dri" / f"renderD{128 + i}").touch()
    return root


@pytest.mark.parametrize(
    ("texts", "devices", "found"),
    [
        ({"nvidia_smi": NVIDIA_SMI, "vulkaninfo": VULKANINFO + RADEON}, [], H100),
        ({"nvidia_smi": None, "vulkaninfo": VULKANINFO + RADEON}, [], GPU("AMD", "AMD Radeon RX 7900 XTX (RADV)")),
        ({"vulkaninfo": VULKANINFO}, [], None),
        ({}, [("0x030000", "0x8086", True), ("0x020000", "0x10de", True)], GPU("Intel", "Intel GPU")),
        ({}, [("0x030000", "0x8086", True), ("0x038000", "0x1002", True)], GPU("AMD", "AMD GPU")),
        ({}, [("0x030200", "0x10de", False)], GPU("NVIDIA", "NVIDIA GPU", has_driver=False)),
        ({}, [("0x030000", "0x8086", False), ("0x030000", "0x1af4", True)], None),
    ],
    ids=["NVIDIA first", "Vulkan", "software", "Intel", "AMD before Intel", "no driver", "container"],
)
def test_gpu_is_found(tmp_path: Path, texts, devices, found):
    assert find_gpu(stand_ins(tmp_path / "bin", **texts), pci(tmp_path / "root", *devices)) == found


@pytest.mark.parametrize(
    ("gpu", "named", "texts", "backend", "index", "advice"),
    [
        (H100, "", {"nvcc": NVCC.format("13.0", "13.0"), "glslc": ""}, "cuda", "cu130", ""),
        (H100, "", {"nvcc": NVCC.format("12.8", "12.8")}, "cuda", "cu125", ""),
        (H100, "", {"nvcc": NVCC.format("12.0", "12.0")}, "cuda", "", ""),
        (H100, "", {"nvcc": None}, "cuda", "", ""),
        (GPU("AMD", ""), "", {"hipcc": ""}, "hip", "rocm72", ""),
        (GPU("AMD", ""), "", {}, "vulkan", "vulkan", "install AMD's ROCm"),
        (GPU("Intel", ""), "", {}, "vulkan", "vulkan", "install the Vulkan SDK"),
        (GPU("", ""), "hip", {}, "hip", "", "install AMD's ROCm"),
    ],
)
def test_backend_and_index(tmp_path: Path, monkeypatch, gpu, named, texts, backend, index, advice):
    # This machine may have compilers in folders outside of PATH.
    compilers = {name: (program, "", package) for name, (program, _, package) in COMPILERS.items()}
    monkeypatch.setattr("tools.accelerator.COMPILERS", compilers)
    path = stand_ins(tmp_path / "bin", **texts)
    found, why = backend_for(gpu, named, path)
    assert (found, wheel_index(found, path)) == (backend, index)
    assert why.startswith(advice)
    assert bool(why) == bool(advice)


# --- installations ---

LIBRARY = ("llama_cpp_python", "0.3.36", "llama_cpp")
EXTRAS = '[project.optional-dependencies]\nserver = ["llama-cpp-python>=0.3.35,<=0.3.36"]\n'
REQUIRES = 'Provides-Extra: server\nRequires-Dist: llama-cpp-python>=0.3.35,<=0.3.36; extra == "server"\n'
# Runs the installer for another project, with the indexes of this machine. No compiler is outside of PATH.
INSTALL = """
import os, pathlib, sys, tools.accelerator as a, tools.install as i
folder, url, *arguments = sys.argv[1:]
i.ROOT, i.INDEXES, i.PACKAGES_INDEX = pathlib.Path(folder), url + '/', url + '/pypi/'
i.REACH_S = float(os.environ.get('REACH_S', i.REACH_S))
a.COMPILERS.update({name: (x, '', z) for name, (x, y, z) in a.COMPILERS.items()})
sys.exit(i.main(arguments))
"""


class Machine:
    """A project, a virtual environment, programs in PATH, and indexes of packages."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.path, self.venv = folder, url, folder / "bin", folder / "venv"
        # With the pip of this environment, since its installation takes seconds.
        venv.create(self.venv, symlinks=True)
        (packages,) = self.venv.glob("lib/python*/site-packages")
        (packages / "pip").symlink_to(Path(pytest.importorskip("pip").__file__).parent)
        write_sources(folder / "project", "localchat_llama", "1.0", "project", EXTRAS, REQUIRES)
        # The package index has the sources of the library alone.
        sources = folder / "llama_cpp_python-0.3.36"
        write_sources(sources, *LIBRARY)
        with tarfile.open(self.packages("pypi") / f"{sources.name}.tar.gz", "w:gz") as archive:
            archive.add(sources, sources.name)
        # Programs that every machine has; this C++ compiler accepts everything.
        stand_ins(self.path, cxx="")

    def packages(self, index: str) -> Path:
        """The folder with the library of an index."""
        folder = self.folder / "indexes" / index / "llama-cpp-python"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(self, index: str, code: str = "") -> None:
        """Publish a wheel of the library in an index."""
        write_wheel(self.packages(index), *LIBRARY, code or f"KIND = {index!r}")

    def install(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", INSTALL, str(self.folder / "project"), self.url, str(self.venv), "server"]
        own = {key: os.environ[key] for key in ("HOME", "TMPDIR", "LD_LIBRARY_PATH") if key in os.environ}
        own |= {"PATH": str(self.path), "PYTHONPATH": str(ROOT), "WHEELHOUSE": "", "PIP_CONFIG_FILE": os.devnull}
        own |= {"PIP_INDEX_URL": f"{self.url}/pypi/", "PIP_NO_CACHE_DIR": "1"}
        options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
        return subprocess.run([*command, *arguments], cwd=ROOT, env=own | variables, **options)

    @property
    def kind(self) -> str:
        """What the installed library is built for."""
        (module,) = self.venv.glob("lib/python*/site-packages/llama_cpp.py")
        return runpy.run_path(str(module))["KIND"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    def respond(request: Request, number: int) -> bytes:
        """A file of an index of packages, or the list of files in a folder."""
        path = tmp_path / "indexes" / request.path.strip("/")
        if path.is_dir():
            links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in path.iterdir())
            return with_length(links.encode(), headers="Content-Type: text/html\r\n")
        return with_length(path.read_bytes()) if path.exists() else with_length(b"", "404 Not Found")

    with serving(respond) as server:
        yield Machine(tmp_path, server.url.removesuffix("/v1"))


SMI = {"nvidia_smi": NVIDIA_SMI}
CUDA = {**SMI, "nvcc": NVCC.format("13.0", "13.0")}
WHEEL = "is a prebuilt wheel for NVIDIA H100 80GB HBM3, of http"
NO_TOOLKIT = "NVIDIA H100 80GB HBM3 is not used: install NVIDIA's CUDA toolkit"


@pytest.mark.parametrize(
    ("texts", "wheels", "variables", "kind", "said"),
    [
        (SMI, ["cpu", "vulkan", "cu130"], {}, "vulkan", WHEEL),
        ({**SMI, "glslc": ""}, ["cpu"], {}, "-DGGML_VULKAN=on", "from source with -DGGML_VULKAN=on"),
        (CUDA, ["cpu", "cu130"], {"ACCEL": "cpu"}, "cpu", "is a prebuilt wheel of http"),
        (CUDA, ["cpu", "cu130", "mine"], {"LLAMA_CPP_INDEX": "/mine"}, "mine", "is a prebuilt wheel of http"),
        (CUDA, ["cpu", "cu130"], {"CMAKE_ARGS": "-DX=1"}, "-DX=1", "from source with -DX=1"),
        ({}, ["cpu"], {}, "cpu", "No GPU was found"),
    ],
    ids=["Vulkan", "glslc", "ACCEL=cpu", "index", "CMAKE_ARGS", "no GPU"],
)
def test_library_is_installed_for_the_gpu(machine: Machine, texts, wheels, variables, kind, said):
    if "No GPU" in said and find_gpu(""):
        pytest.skip("this machine has a GPU")
    stand_ins(machine.path, **texts)
    for index in wheels:
        machine.publish(index)
    done = machine.install(**{key: value.replace("/", f"{machine.url}/") for key, value in variables.items()})
    assert done.returncode == 0, done.stdout + done.stderr
    assert machine.kind == kind
    assert said in done.stdout
    assert "is not used" not in done.stdout


def test_wheel_that_cannot_be_loaded_and_a_failed_build_give_the_library_for_the_cpu(machine: Machine):
    stand_ins(machine.path, **CUDA)
    machine.publish("cu130", "raise OSError('libcudart.so.13: cannot open shared object file')")
    machine.publish("cpu")
    (machine.path / "c++").unlink()
    done = machine.install()
    assert (done.returncode, machine.kind) == (0, "cpu")
    assert "has a wheel of llama-cpp-python that cannot be loaded on this machine" in done.stdout
    assert "NVIDIA H100 80GB HBM3 is not used, since this build failed; later: make gpu\n" in done.stdout


def test_gpu_that_comes_later_is_used_after_make_gpu(machine: Machine):
    stand_ins(machine.path, **SMI)
    machine.publish("cpu")
    first = machine.install()
    assert (first.returncode, machine.kind, NO_TOOLKIT in first.stdout) == (0, "cpu", True)
    failed = machine.install("--replace")
    assert (failed.returncode, machine.kind) == (1, "cpu")
    assert failed.stderr.startswith(f"install: {NO_TOOLKIT}")
    assert failed.stderr.endswith("(nvcc was not found), then: make gpu\n")
    stand_ins(machine.path, **CUDA)
    for index, kind, said in (("cpu", "-DGGML_CUDA=on", "from source with -DGGML_CUDA=on"), ("cu130", "cu130", WHEEL)):
        machine.publish(index)
        done = machine.install("--replace")
        assert (done.returncode, machine.kind, said in done.stdout) == (0, kind, True)


@pytest.mark.parametrize(
    ("accelerator", "message"),
    [
        ("cuda", "ACCEL=cuda is not used: install NVIDIA's CUDA toolkit"),
        ("gpu", "ACCEL=gpu is unknown: use one of cpu, cuda, vulkan, hip, metal"),
    ],
)
def test_accelerator_that_is_named_and_cannot_be_used_is_an_error(machine: Machine, accelerator: str, message: str):
    done = machine.install(ACCEL=accelerator)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"install: {message}")


def test_machine_without_a_network_waits_for_seconds(machine: Machine):
    stand_ins(machine.path, **CUDA)
    with silent() as port:
        machine.url = f"http://127.0.0.1:{port}"
        start = time.monotonic()
        done = machine.install(REACH_S="0.2")
    assert done.returncode == 1
    assert f"http://127.0.0.1:{port}/cu130, cannot be reached within 0.2 s." in done.stdout
    assert done.stderr.startswith("install: there is no network: ")
    assert "docs/install.md, Without a network" in done.stderr
    assert time.monotonic() - start < 60  # Five tries. With pip's own limits it takes minutes.
