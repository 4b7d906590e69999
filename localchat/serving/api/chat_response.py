"""POST /v1/chat/completions, the response: encodes output events as one body or a stream of chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.events import PromptProgress
from .chat import ChatRequest, parse_chat
from .encoder import CALL, REASONING, Block, Choice, Encoder, Interface, progress_body
from .logprobs import logprob_entry, prompt_logprobs


class ChatEncoder(Encoder[ChatRequest]):
    """Encodes a chat completion."""

    def started(self) -> None:
        # These chunks come before all text, also if tokens have been sampled already.
        counts = self.counts(replace(self.usage(), n_completion=0, n_reasoning=0))
        for choice in self.choices:
            prompt_ids = self._prompt_ids() if choice.index == 0 else {}
            self._emit(choice, {"role": self.request.role, "content": ""}, **prompt_ids, **counts)

    def opened(self, choice: Choice, block: Block) -> None:
        if block.kind == CALL:
            # The first chunk of a call has the name and empty arguments. Later chunks have pieces of the arguments.
            call = block.call
            function = {"name": call.name, "arguments": ""}
            started = {"index": call.index, "id": call.id, "type": "function", "function": function}
            self._emit(choice, {"tool_calls": [started]})

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        if block.kind == CALL:
            self._emit(choice, {"tool_calls": [{"index": block.call.index, "function": {"arguments": text}}]})
        elif block.kind == REASONING:
            thought = {"thought": text} if self.request.thought_field and choice.index == 0 else {}
            self._emit(choice, {"reasoning_content": text}, **thought)
        else:
            self._emit(choice, {"content": text})

    def progress(self, choice: Choice, progress: PromptProgress) -> None:
        self._emit(choice, {}, prompt_progress=progress_body(progress))

    def ended(self, choice: Choice) -> None:
        # As in OpenAI's API, a separate chunk with an empty delta has the finish reason.
        # The last chunk of the stream has the timings.
        is_last = not self.request.include_usage and all(choice.end for choice in self.choices)
        self._emit(choice, {}, **({"timings": self.usage().timings()} if is_last else {}))

    def finish(self) -> None:
        if self.request.include_usage:
            usage = self.usage()
            counts = {"usage": usage.body(), "timings": usage.timings()}
            self.emit({**self._head("chat.completion.chunk"), "choices": [], **counts})

    def body(self) -> dict[str, Any]:
        usage, first = self.usage(), self.choices[0]
        thought = first.text(REASONING) if self.request.thought_field else ""
        scored = {}
        if first.prompt_tokens is not None:
            scored["prompt_logprobs"] = prompt_logprobs(first.prompt_tokens, self.request.params.prompt_logprobs or 0)
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(choice, {"message": self._message(choice)}) for choice in self.choices],
            "usage": usage.body(),
            **self._prompt_ids(),
            **scored,
            **({"thought": thought} if thought else {}),
            "timings": usage.timings(),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.head.id, "object": kind, "created": self.head.created, "model": self.head.model}

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.head.prompts[0]} if self.request.return_token_ids else {}

    def _emit(self, choice: Choice, delta: dict[str, Any], **extra: Any) -> None:
        if self.request.stream:
            entry, counts = self._choice(choice, {"delta": delta}), self.counts()
            self.emit({**self._head("chat.completion.chunk"), "choices": [entry], **counts, **extra})

    def _choice(self, choice: Choice, text: dict[str, Any]) -> dict[str, Any]:
        """A choice of a chunk or of the body, with the tokens since its last chunk."""
        params, end = self.request.params, choice.end
        _, tokens = choice.take_tokens()
        logprobs = None
        if params.top_logprobs is not None and tokens:
            as_ids, after_sampling = self.request.tokens_as_ids, params.post_sampling_probs
            logprobs = {"content": [logprob_entry(t, as_ids=as_ids, after_sampling=after_sampling) for t in tokens]}
        ids = {"token_ids": [token.id for token in tokens]} if self.request.return_token_ids and tokens else {}
        finish = {"finish_reason": None} if end is None else {"finish_reason": end.reason, "stop_reason": end.stop}
        return {"index": choice.index, **text, "logprobs": logprobs, **ids, **finish}

    def _message(self, choice: Choice) -> dict[str, Any]:
        reasoning, calls = choice.text(REASONING), [_call(block) for block in choice.calls]
        return {
            "role": self.request.role,
            **({"reasoning_content": reasoning} if reasoning else {}),
            # As in OpenAI's API, empty content is null if there are tool calls.
            "content": choice.text() or (None if calls else ""),
            **({"tool_calls": calls} if calls else {}),
        }


def _call(block: Block) -> dict[str, Any]:
    return {"id": block.call.id, "type": "function", "function": {"name": block.call.name, "arguments": block.text}}


INTERFACE = Interface(id_prefix="chatcmpl-", parse=parse_chat, encoder=ChatEncoder)
