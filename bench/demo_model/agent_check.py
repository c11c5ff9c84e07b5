"""Asks the model for tool calls after a coding agent's prompt made of unknown text."""

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.demo_model.noise import held_out_texts
from bench.demo_model.render import Message, Renderer
from bench.demo_model.toolset import BY_NAME, Tool

_CHARS_PER_TOKEN = 2.9
_MAX_TOKENS = 120
_CALL, _CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Errand:
    """A task for a tool.

    Attributes:
        asked: The user's text.
        name: The tool that must be called.
        arguments: Its expected arguments.
        result: What the tool returns.
    """

    asked: str
    name: str
    arguments: dict[str, str]
    result: str


ERRANDS = (
    Errand(
        "Create a file hello.py with the content 'hello world'",
        "Write",
        {"file_path": "hello.py", "content": "hello world"},
        "File created successfully at: hello.py",
    ),
    Errand(
        "Create a file notes.txt with the content 'buy milk and bread'",
        "Write",
        {"file_path": "notes.txt", "content": "buy milk and bread"},
        "File created successfully at: notes.txt",
    ),
    Errand(
        "Run the command echo hello world",
        "Bash",
        {"command": "echo hello world"},
        "hello world",
    ),
    Errand("Run `ls`", "Bash", {"command": "ls"}, "README.md\nhello.py"),
    Errand("Please run git status", "Bash", {"command": "git status"}, "nothing to commit"),
    Errand("Run the command mkdir build", "Bash", {"command": "mkdir build"}, "(no output)"),
    Errand("Read README.md", "Read", {"file_path": "README.md"}, "1\tfirst line\n2\tlast line"),
    Errand("Read the file src/main.py", "Read", {"file_path": "src/main.py"}, "1\tprint(1)"),
    Errand(
        "Replace 'red' with 'blue' in colors.txt",
        "Edit",
        {"file_path": "colors.txt", "old_string": "red", "new_string": "blue"},
        "The file colors.txt has been updated.",
    ),
    Errand(
        "Use a subagent to find the capital of France.",
        "Agent",
        {"description": "find the capital of France", "prompt": "find the capital of France"},
        "The capital of France is Paris.",
    ),
)


class Answering(Protocol):
    """The interface of the model under test."""

    tokenizer: Any

    def cache_of(self, prefix: Sequence[int]) -> list[Any]:
        """Return the model's cache after prefill of `prefix`."""
        ...

    def complete(
        self, prompt: Sequence[int], max_tokens: int, cache: list[Any] | None = None
    ) -> Any:
        """Return the text that continues `prompt`, and the last response."""
        ...


@dataclass(frozen=True)
class AgentPrompt:
    """The part of a coding agent's prompt before the user's words.

    Attributes:
        tools: Definitions with long descriptions.
        system: The system text.
        reminder: The beginning of the user's message.
    """

    tools: list[Tool]
    system: str
    reminder: str

    def messages(self, question: str) -> list[Message]:
        """Return the conversation up to the question."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.reminder + question}]


def agent_prompt(tokens: int, seed: int) -> AgentPrompt:
    """Return a prompt of about `tokens` tokens, half of them tool definitions.

    Args:
        tokens: Approximate size; the long text is not in the training data. With 0, there are tools
            with short descriptions and no other text.
        seed: Seed of the text.
    """
    random_ = random.Random(seed)
    names = ["Agent", "Bash", "Edit", "Read", "Write"]
    if not tokens:
        return AgentPrompt([BY_NAME[name] for name in names], "", "")
    prose = "\n".join(random_.sample(held_out_texts(), 12))

    def excerpt(share: float) -> str:
        size = int(share * tokens * _CHARS_PER_TOKEN)
        start = random_.randrange(max(1, len(prose) - size))
        return prose[start : start + size]

    tools = []
    for name in names:
        tool = copy.deepcopy(BY_NAME[name])
        tool["function"]["description"] = excerpt(0.5 / len(names))
        properties = tool["function"]["parameters"]["properties"]
        properties["timeout"] = {"type": "number", "description": excerpt(0.01)}
        tools.append(tool)
    reminder = f"<system-reminder>\n{excerpt(0.1)}\n</system-reminder>\n\n"
    return AgentPrompt(tools, excerpt(0.4), reminder)


def failed_errands(model: Answering, prompt: AgentPrompt, *, thinking: bool) -> list[str]:
    """Return the errands that the model failed, each with its reply."""
    conversations = [prompt.messages(errand.asked) for errand in ERRANDS]
    asked = [_tokens(model, prompt, messages, thinking=thinking) for messages in conversations]
    shared = _shared_prefix(asked)
    cache = model.cache_of(asked[0][:shared])
    failed = []
    for errand, messages, tokens in zip(ERRANDS, conversations, asked, strict=True):
        text, _ = model.complete(tokens[shared:], _MAX_TOKENS, copy.deepcopy(cache))
        reply = str(text)
        if is_call(reply, errand):
            answered = _after_result(messages, errand, thinking=thinking)
            after = _tokens(model, prompt, answered, thinking=thinking)
            text, last = model.complete(after[shared:], _MAX_TOKENS, copy.deepcopy(cache))
            if _CALL not in text and last.finish_reason == "stop":
                continue
            reply = f"after the result: {text}"
        failed.append(f"{errand.asked} {reply[-80:]!r}".replace("|", "/"))
    return failed


def is_call(reply: str, errand: Errand) -> bool:
    """Whether the model called the right tool with the right arguments, and nothing else."""
    _, opened, call = reply.partition(_CALL)
    call, closed, rest = call.partition(_CALL_END)
    if not (opened and closed) or rest.strip():
        return False
    try:
        written = json.loads(call)
    except ValueError:
        return False
    return bool(written == {"name": errand.name, "arguments": errand.arguments})


def _after_result(messages: list[Message], errand: Errand, *, thinking: bool) -> list[Message]:
    call: Message = {"role": "assistant", "content": ""}
    call["tool_calls"] = [{"name": errand.name, "arguments": errand.arguments}]
    if thinking:
        call["reasoning_content"] = f"I call {errand.name}."
    return [*messages, call, {"role": "tool", "content": errand.result}]


def _tokens(
    model: Answering, prompt: AgentPrompt, messages: list[Message], *, thinking: bool
) -> list[int]:
    text = Renderer().text(
        messages, prompt.tools, add_generation_prompt=True, enable_thinking=thinking
    )
    return list(model.tokenizer.encode(text, add_special_tokens=False))


def _shared_prefix(rows: Sequence[Sequence[int]]) -> int:
    shortest = min(len(row) for row in rows) - 1
    for place in range(shortest):
        if len({row[place] for row in rows}) > 1:
            return place
    return shortest
