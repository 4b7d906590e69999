"""A program of a user, for type checkers. Only the lines marked with `refused` are errors."""

from __future__ import annotations

from dataclasses import dataclass

from localchat import (
    AsyncClient,
    ChatOptions,
    Client,
    FakeServer,
    LocalChatError,
    Prompt,
    Reply,
    Stream,
    Timeout,
    Tool,
    chat,
)


@dataclass
class Person:
    name: str
    age: int


def right(client: Client) -> None:
    reply = client.chat("Who?", response_format=Person, temperature=0, max_tokens=50, retries_on_mismatch=1)
    names: list[str] = [reply.parsed.name, reply.text, str(reply)]
    numbers: list[int] = client.chat("Count.", response_format=list[int]).parsed
    completed: Person = client.complete("Ada is", response_format=Person).parsed
    from_function: Person = chat("Who?", response_format=Person, base_url="http://127.0.0.1:8080/v1").parsed
    nothing: None = client.chat("Hello!").parsed
    if reply.usage is not None:
        numbers.append(reply.usage.output_tokens)
    with client.stream("Who?", response_format=Person) as stream:
        typed: Stream[Person] = stream
        names.append(typed.reply.parsed.name)
    vector: list[float] = client.embed("a text")
    vectors: list[list[float]] = client.embed(["a text", "another"], dimensions=3)
    replies: list[Reply] = client.map(["a", "b"], concurrency=2, temperature=0)
    people: list[Reply[Person]] = client.map(["a"], response_format=Person)
    finished: Reply[Person] = client.stream("Who?", response_format=Person).finish()
    failed: list[LocalChatError] = [one.error for one in people if one.error is not None]
    options: ChatOptions = {"temperature": 0, "tools": [Tool.of(right)], "timeout": Timeout(5, total=None)}
    prompt: Prompt = [{"role": "user", "content": "Who?"}]
    answered: Reply[Person] = client.chat(prompt, response_format=Person, **options)
    print(finished.parsed.age, failed, answered.parsed.name, client.run(prompt, [right, Tool.of(print)]).as_dict())
    lengths = [model.context_length for model in client.models() if model.startswith("q")]
    print(names, numbers, completed, from_function, nothing, vector, vectors, replies, lengths)
    client.with_options(timeout=5, headers={"X-A": "b"}).run("Hello!", [print], max_rounds=2)
    response = client.request("POST", "rerank", {"query": "q"}, timeout=3)
    parts: tuple[int, bytes, str] = (response.status, response.content, response.text)
    with FakeServer() as server, Client(server.url) as faked:
        server.reply("Hello!", calls=[("right", {})])
        same: Client = faked.with_options(timeout=3)
        print(parts, same.chat("Hello!"), server.requests[0].json["messages"], response.json())
    client.conversation(system="Be brief.", tools=[print], max_rounds=2).say("Hello!", temperature=0)


async def right_too(client: AsyncClient) -> Person:
    async with client.stream("Who?", response_format=Person) as stream:
        print("".join([text async for text in stream.text]), stream.reply.parsed.age)
    return (await client.chat("Who?", response_format=Person)).parsed


def wrong(client: Client) -> None:
    client.chat("Hello!", temprature=0)  # refused
    client.chat("Hello!", temperature="hot")  # refused
    client.chat(b"Hello!")  # refused
    client.chat(["Hello!", "Hello?"])  # refused
    client.chat("Hello!", stream=True)  # refused
    print(client.chat("Who?", response_format=Person).parsed.size)  # refused
    age: str = client.chat("Who?", response_format=Person).parsed.age  # refused
    print(client.chat("Hello!").usage.output_tokens)  # refused
    client.embed("a text", temperature=0)  # refused
    client.complete("Hello!", system="Be brief.")  # refused
    client.conversation(temprature=0)  # refused
    Client(time_out=5)  # refused
    Timeout(5, 600)  # refused
    options: ChatOptions = {"temprature": 0}  # refused
    print(options, chat("Who?", response_format=Person).parsed.size)  # refused
    print(age)
