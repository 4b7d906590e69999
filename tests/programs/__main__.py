"""`python -m tests.programs [NAME...] [pytest options]`: install the named programs, by default all, and test them.

A program that cannot be installed here is reported, and its tests are skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.programs.catalog import PROGRAMS
from tests.programs.program import InstallError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    options, pytest_options = parser.parse_known_args()
    if unknown := set(options.name) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [program for program in PROGRAMS if not options.name or program.name in options.name]
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
    selected = ["-k", " or ".join(f"[{program.name}]" for program in chosen)]
    tests = [sys.executable, "-m", "pytest", str(Path(__file__).parent), *selected, *pytest_options]
    return subprocess.run(tests, env={**os.environ, "LOCALCHAT_PROGRAMS": "run"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
