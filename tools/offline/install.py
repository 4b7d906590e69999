"""Install localchat from this folder into a virtual environment, without a network: python3 install.py [TARGET]."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def default_target():
    """The folder in which an ordinary user installs programs."""
    home = os.path.expanduser("~")
    if os.name == "nt":
        return os.path.join(os.environ.get("LOCALAPPDATA", home), "localchat")
    return os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "localchat")


def check_python(pythons):
    """Exit unless the folder has wheels for this version: those of numpy and MarkupSafe are for one minor version."""
    version = "%d.%d" % sys.version_info[:2]
    if version not in pythons:
        sys.exit("install: this folder is for Python %s, this is %s; name another: PYTHON=python%s sh install.sh"
                 % (", ".join(pythons), version, pythons[-1]))  # fmt: skip


def check_files():
    """Exit unless every file has the digest that SHA256SUMS lists."""
    with open(os.path.join(HERE, "SHA256SUMS"), encoding="utf-8") as sums:
        for line in sums:
            digest, name = line.rstrip("\n").split("  ", 1)
            path = os.path.join(HERE, *name.split("/"))
            if not os.path.exists(path):
                sys.exit("install: %s is missing: copy the folder again" % path)
            found = hashlib.sha256()
            with open(path, "rb") as file:
                for data in iter(lambda: file.read(1 << 20), b""):  # read at once
                    found.update(data)
            if found.hexdigest() != digest:
                sys.exit("install: %s is damaged: copy the folder again" % path)


def main():
    """Check the folder, install it, and print the command that starts the server."""
    with open(os.path.join(HERE, "folder.json"), encoding="utf-8") as file:
        folder = json.load(file)
    check_python(folder["pythons"])
    check_files()
    target = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else default_target())
    commands = os.path.join(target, "Scripts" if os.name == "nt" else "bin")
    python = os.path.join(commands, "python")
    if subprocess.call([sys.executable, "-m", "venv", target]):
        sys.exit("install: cannot create %s; on Debian and Ubuntu the package python3-venv is needed" % target)
    wheels = os.path.join(HERE, "wheels")
    pip = [python, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    # The same version from a newer folder replaces an older build.
    own = ["--force-reinstall", "--no-deps", "localchat-llama", "llama-cpp-python"]
    for arguments in (["localchat-llama[%s]" % folder["extras"]], own):
        if subprocess.call([*pip, "--find-links", wheels, *arguments]):
            sys.exit("install: pip could not install from %s; its message is above" % wheels)
    done = subprocess.run(
        [python, "-c", "import llama_cpp"], stderr=subprocess.PIPE, universal_newlines=True, check=False
    )
    if done.returncode:
        sys.exit("install: llama-cpp-python cannot be loaded here: %s\nIt was built on %s."
                 % ((done.stderr.strip() or "no reason given").splitlines()[-1], folder["built_on"]))  # fmt: skip
    models = os.path.join(target, "share", "localchat", "models")
    shutil.rmtree(models, ignore_errors=True)
    if folder.get("model"):
        shutil.copytree(os.path.join(HERE, "models"), models)
    server = os.path.join(commands, "localchat-server") + " " + folder.get("model", "")
    print("Installed in %s. Start the server with:\n%s" % (target, server.rstrip()))


if __name__ == "__main__":
    main()
