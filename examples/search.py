"""Searches the paragraphs of the texts in a folder by meaning, with embeddings.

    python examples/search.py docs "copying the client into one file"

The vectors are computed again in each run; a program for large folders would save them.
An embedding model gives far better results than a chat model.
The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from localchat import Client

N_SHOWN = 3
MIN_CHARS, MAX_CHARS = 40, 600


def paragraphs(folder: Path) -> list[tuple[str, str]]:
    """The name of the file and the text of each paragraph."""
    found = []
    for path in sorted([*folder.rglob("*.md"), *folder.rglob("*.txt")]):
        for text in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            if len(text) >= MIN_CHARS:
                found.append((path.name, " ".join(text.split())[:MAX_CHARS]))
    return found


def similarity(a: list[float], b: list[float]) -> float:
    """The cosine of the angle between two vectors."""
    return sum(x * y for x, y in zip(a, b)) / (math.hypot(*a) * math.hypot(*b) or 1)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit('usage: search.py FOLDER "QUESTION"')
    folder, question = Path(sys.argv[1]), " ".join(sys.argv[2:])
    texts = paragraphs(folder)
    if not texts:
        sys.exit(f"{folder} has no .md or .txt file with a paragraph of {MIN_CHARS} characters")
    wanted, *vectors = Client().embed([question, *(text for _, text in texts)])
    scored = zip((similarity(wanted, vector) for vector in vectors), texts)
    for score, (name, text) in sorted(scored, reverse=True)[:N_SHOWN]:
        print(f"{score:.2f} {name}: {text[:120]}")


if __name__ == "__main__":
    main()
