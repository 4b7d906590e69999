"""Writes the lines of each room into the table of docs/design.md: `python -m tools.sizes`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "design.md"


def room_of(path: Path) -> str:
    """The room of a module in localchat/, by its path there: a folder, or "" for the root."""
    folders = path.parts[:-1]
    depth = 3 if folders[:2] == ("serving", "chat") else 2 if folders[:1] == ("serving",) else 1
    return "".join(f"{folder}/" for folder in folders[:depth])


def table() -> str:
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for folder in ("localchat", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            n_lines = len(path.read_text(encoding="utf-8").splitlines())
            room = room_of(path.relative_to(ROOT / "localchat")) if folder == "localchat" else "tests/"
            for name in (room, "sum") if folder == "localchat" else (room,):
                lines[name] += n_lines
                files[name] += 1
    names = [*sorted(set(lines) - {"", "sum", "tests/"}), "sum", "tests/"]
    rows = [("root", ""), *((f"`{name}`" if name.endswith("/") else name, name) for name in names)]
    return "| room | lines | files |\n|---|---|---|\n" + "".join(
        f"| {shown} | {lines[name]:,} | {files[name]} |\n" for shown, name in rows
    )


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(r"(?<=`python -m tools\.sizes`\.\n\n)(\|.*\n)*")
    PAGE.write_text(pattern.sub(table(), text), encoding="utf-8")
