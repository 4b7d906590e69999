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
    program = [str(commands / "localchat-server"), "--port", "0"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as server:
        timer = threading.Timer(START_S, server.kill)
        timer.start()
        assert server.stderr is not None
        try:
            ready = next((line for line in server.stderr if "ready" in line), "")
            url = re.search(r"http://[\w.]+:\d+/v1", ready)
            if url is None:
                sys.exit("the server did not start")
            done = subprocess.run(
                [str(commands / "localchat"), "What is your name?"],
                env={**os.environ, "OPENAI_BASE_URL": url[0]},
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
            timer.cancel()
            server.terminate()


if __name__ == "__main__":
    main()
