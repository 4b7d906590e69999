"""Start the installed server, chat with it through the installed client, and check the output.

The interpreter of the installation runs this program, which uses only the standard library and the two commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

START_S, CHAT_S = 120, 60


def main() -> None:
    commands = Path(sys.executable).parent
    with subprocess.Popen(
        [str(commands / "localchat-server"), "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        timer = threading.Timer(START_S, server.kill)
        timer.start()
        lines: list[str] = []
        url = None
        assert server.stderr is not None
        for line in server.stderr:
            lines.append(line)
            match = re.search(r"ready.*?(http://[\w.]+:\d+/v1)", line)
            if match:
                url = match.group(1)
                break
        timer.cancel()
        try:
            if url is None:
                sys.exit(f"the server did not start:\n{''.join(lines)}")
            done = subprocess.run(
                [str(commands / "localchat"), "What is your name?"],
                env={**os.environ, "OPENAI_BASE_URL": url},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CHAT_S,
                check=False,
            )
            if done.returncode or "localchat" not in done.stdout:
                sys.exit(f"the output is wrong: {done.stdout}{done.stderr}")
            print(done.stdout.strip())
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
