"""`python -m tests.programs [NAME...] [pytest options]`: install the named programs, by default all, and test them.

A program that cannot be installed here is reported, and its tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.programs.catalog import PROGRAMS
from tests.programs.program import InstallError


def main() -> int:
    arguments, names = sys.argv[1:], [program.name for program in PROGRAMS]
    n_names = next((i for i, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    chosen_names, pytest_options = arguments[:n_names], arguments[n_names:]
    if unknown := set(chosen_names) - set(names):
        sys.exit(f"there is no program {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [program for program in PROGRAMS if not chosen_names or program.name in chosen_names]
    for program in chosen:
        if program.is_installed:
            continue
        start = time.monotonic()
        try:
            program.install()
            result = "installed"
        except InstallError as error:
            result = f"CANNOT BE INSTALLED: {error}"
        print(f"{program.name:15} {program.version:10} {time.monotonic() - start:5.0f} s  {result}", flush=True)
    # Not in the folder of the project: coding agents would take it for theirs.
    folder = tempfile.mkdtemp(prefix="localchat-programs-")
    tests = [sys.executable, "-m", "pytest", str(Path(__file__).parent), f"--basetemp={folder}"]
    environment = {**os.environ, "LOCALCHAT_PROGRAMS": " ".join(program.name for program in chosen)}
    done = subprocess.run([*tests, *pytest_options], env=environment, check=False)
    print(f"what the programs sent and wrote: {folder}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
