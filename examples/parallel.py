"""Sends several requests at once with asyncio, and prints the pieces of each response as they come.

    python examples/parallel.py "What is your name?" "Count to 5."

Each line of the output begins with the number of its prompt. All requests end as soon as one of them fails, or after
Ctrl-C.
The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import asyncio
import sys

from localchat import AsyncClient

PROMPTS = ("What is your name?", "Count to 5.")


async def show(client: AsyncClient, number: int, prompt: str) -> str:
    """Print the pieces of one response, and return its text."""
    async with client.stream(prompt) as stream:
        async for text in stream.text:
            print(f"{number}: {text!r}")
    return stream.reply.text


async def main() -> None:
    prompts = sys.argv[1:] or PROMPTS
    async with AsyncClient() as client:
        texts = await asyncio.gather(*(show(client, number, prompt) for number, prompt in enumerate(prompts, 1)))
    for prompt, text in zip(prompts, texts):
        print(f"{prompt}\n  {text}")


if __name__ == "__main__":
    asyncio.run(main())
