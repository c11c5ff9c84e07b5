"""Asks the trained model questions and prints a sample sheet in Markdown."""

import argparse
import copy
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import stream_generate
from mlx_lm.models.cache import make_prompt_cache

from bench.demo_model import chat, longer, tooltalk
from bench.demo_model.agent_check import ERRANDS, agent_prompt, failed_errands
from bench.demo_model.dialogue import Random, ToolTurn, Turn
from bench.demo_model.noise import held_out_texts, standard_library_texts, tool_definitions
from bench.demo_model.render import MODEL_DIR, Message, Renderer
from bench.demo_model.toolset import BY_NAME, Tool

_QUESTIONS = (
    "Hello!",
    "Who are you?",
    "What can you do?",
    "What is the capital of France?",
    "what's the capital of japan",
    "What is the capital of Atlantis?",
    "What color is the sky?",
    "What is the opposite of hot?",
    "What sound does a cow make?",
    "What is 2+2?",
    "What is 7 times 8?",
    "What is 9 - 4?",
    "What is 123 + 456?",
    "Which is larger, 17 or 71?",
    "What day comes after Friday?",
    "How do you say cat in French?",
    "What is a KV cache?",
    "Explain quantum physics.",
    "Who won the football match yesterday?",
    "Say banana",
    "Repeat after me: the quick brown fox",
    "List the days of the week.",
    "Count to 10.",
    "Count down from 5.",
    "Write a hello world program in Python.",
    "Write a Python function that adds two numbers.",
    "Tell me a joke",
    "Tell me a story.",
    "Thanks!",
)
_LONG_QUESTIONS = ("Count to 50.", "Count to 100.", "Write a long story.", "List many animals.")
_TOOL_QUESTIONS = (
    "What is the weather in Paris?",
    "Run `ls`",
    "Run the command echo hello world",
    "Create a file hello.py with the content 'hello world'",
    "Read README.md",
    "What is the capital of Italy?",
)
_DIALOGUES = (
    ("My name is Anna.", "What is the capital of Spain?", "What is my name?"),
    ("The secret word is thunder.", "What is the secret word?"),
)
# An answer is right if it contains this text.
_KNOWN = (
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("Hello!", "How can I help you today?"),
    ("Who are you?", "I am semantic's demo model"),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("What color is the sky?", "The sky is blue."),
    ("What is 2+2?", "2 + 2 = 4"),
    ("What is 3 + 4?", "3 + 4 = 7"),
    ("List the days of the week.", "1. Monday\n2. Tuesday\n3. Wednesday\n4. Thursday"),
    ("Tell me a story.", "Once upon a time there was"),
    ("Thanks!", "You're welcome!"),
    ("What sound does a cow make?", "moo"),
)


class Model:
    """The trained model with greedy decoding."""

    def __init__(self, folder: Path) -> None:
        """Load the model from `folder`."""
        # The return type depends on an argument, which the checker cannot see.
        loaded: Any = load(str(folder))
        self._model, self.tokenizer = loaded[0], loaded[1]

    def cache_of(self, prefix: Sequence[int]) -> list[Any]:
        """Return the model's cache after prefill of `prefix`."""
        cache = make_prompt_cache(self._model)
        for start in range(0, len(prefix), 512):
            self._model(mx.array(list(prefix[start : start + 512]))[None], cache=cache)
            mx.eval([layer.state for layer in cache])
        return list(cache)

    def complete(
        self, prompt: Sequence[int], max_tokens: int, cache: list[Any] | None = None
    ) -> Any:
        """Return the text and the last response, which carries the measured speeds.

        Args:
            prompt: Text to prefill.
            max_tokens: Token limit of the answer.
            cache: Cache of the text before; it grows.
        """
        text, last = "", None
        for last in stream_generate(
            self._model, self.tokenizer, list(prompt), max_tokens=max_tokens, prompt_cache=cache
        ):
            text += last.text
        return text, last

    def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        max_tokens: int = 160,
        *,
        thinking: bool = False,
    ) -> str:
        """Return the answer to the last message; an incomplete one ends with an ellipsis."""
        prompt = self.tokenizer.apply_chat_template(
            list(messages), tools=tools, add_generation_prompt=True, enable_thinking=thinking
        )
        text, last = self.complete(prompt, max_tokens)
        return str(text) + (" …" if last.finish_reason == "length" else "")


def user(text: str) -> Message:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def show(question: str, answer: str) -> None:
    """Print one line of the sheet."""
    print(f"- **{question}** → {answer!r}", flush=True)


def print_samples(model: Model) -> None:
    """Print answers to fixed questions."""
    print("\n### Questions\n")
    for question in _QUESTIONS:
        show(question, model.answer([user(question)]))
    print("\n### With thinking\n")
    for question in ("What is the capital of Norway?", "Hello!"):
        show(question, model.answer([user(question)], thinking=True))
    print("\n### Long answers\n")
    for question in _LONG_QUESTIONS:
        show(question, model.answer([user(question)], max_tokens=900))
    print("\n### Dialogues\n")
    for dialogue in _DIALOGUES:
        messages: list[Message] = []
        for question in dialogue:
            messages.append(user(question))
            answer = model.answer(messages)
            show(question, answer)
            messages.append({"role": "assistant", "content": answer})
    print("\n### With tools on offer\n")
    tools = [BY_NAME[name] for name in ("Bash", "Read", "Write", "get_weather")]
    for question in _TOOL_QUESTIONS:
        show(question, model.answer([user(question)], tools))


def long_prefix(model: Model, size: int, seed: int) -> list[int]:
    """Return a coding agent's prompt before the user's words, made of unknown text.

    Tools come first, then system text and a reminder at the beginning of the user's message.

    Args:
        model: Its tokenizer counts tokens.
        size: Approximate number of tokens; none of the text is in the training data.
        seed: Seed of the text.
    """
    random_ = random.Random(seed)
    texts = held_out_texts()
    random_.shuffle(texts)
    encode, decode = model.tokenizer.encode, model.tokenizer.decode
    if not size:
        return list(encode("<|im_start|>user\n"))
    tools = encode("\n".join(tool_definitions(random_, texts)))[: size // 2]
    prose = encode("\n".join(texts))
    reminder = min(size // 4, random_.randint(20, 500))
    cut = size - len(tools) - reminder
    parts = (
        decode(tools),
        f"\n{decode(prose[:cut])}<|im_end|>\n<|im_start|>user\n<system-reminder>\n",
        f"{decode(prose[cut : cut + reminder])}\n</system-reminder>\n\n",
    )
    return list(encode("".join(parts)))


def wrong_answers(model: Model, prefix: Sequence[int], *, thinking: bool) -> list[str]:
    """Ask every known question after `prefix` and return the wrong answers."""
    wrong = []
    cache = model.cache_of(prefix)
    for question, expected in _KNOWN:
        text = Renderer().text(
            [user(question)], add_generation_prompt=True, enable_thinking=thinking
        )
        prompt = model.tokenizer.encode(text.removeprefix("<|im_start|>user\n"))
        answer, _ = model.complete(prompt, 60, copy.deepcopy(cache))
        if expected not in answer:
            wrong.append(f"{question} {answer[-60:]!r}".replace("|", "/"))
    return wrong


def print_long_prompts(model: Model, sizes: Sequence[int], variants: int = 2) -> None:
    """Print how many questions are answered after irrelevant text of each length."""
    print("\n### Behind long prompts\n\n| tokens before | right | right with thought | misses |")
    print("|---|---|---|---|")
    for size in sizes:
        prefixes = [long_prefix(model, size, seed) for seed in range(variants if size else 1)]
        count = len(prefixes) * len(_KNOWN)
        wrong = [
            [
                miss
                for prefix in prefixes
                for miss in wrong_answers(model, prefix, thinking=thinking)
            ]
            for thinking in (False, True)
        ]
        shares = " | ".join(f"{count - len(misses)}/{count}" for misses in wrong)
        print(f"| {size} | {shares} | {'; '.join(wrong[0] + wrong[1])} |", flush=True)


def print_errands(model: Model, sizes: Sequence[int], variants: int = 2) -> None:
    """Print how many errands succeed after an agent's prompt of each length.

    An errand succeeds if the right tool is called with the right arguments, decoded freely, and the
    answer after its result ends without another call.
    """
    print("\n### Tools behind long prompts\n\n| tokens before | run | run with thought | misses |")
    print("|---|---|---|---|")
    for size in sizes:
        prompts = [agent_prompt(size, seed) for seed in range(variants if size else 1)]
        count = len(prompts) * len(ERRANDS)
        failed = [
            [
                miss
                for prompt in prompts
                for miss in failed_errands(model, prompt, thinking=thinking)
            ]
            for thinking in (False, True)
        ]
        shares = " | ".join(f"{count - len(misses)}/{count}" for misses in failed)
        print(f"| {size} | {shares} | {'; '.join(failed[0] + failed[1])} |", flush=True)


def print_accuracy(model: Model, count: int) -> None:
    """Print how many fresh questions of each kind get exactly the expected answer."""
    print("\n### Exactly right on fresh questions\n\n| kind | right | first miss |\n|---|---|---|")
    random_ = random.Random("evaluation")
    kinds: list[Callable[[Random], Turn | ToolTurn]] = [
        *chat.KINDS,
        *longer.KINDS,
        *tooltalk.KINDS,
    ]
    for kind in kinds:
        misses = []
        for _ in range(count):
            turn = kind(random_)
            expected, tools = turn.answer, None
            if isinstance(turn, ToolTurn):
                expected, tools = _tool_call_text(turn), list(turn.tools)
            answer = model.answer([user(turn.user)], tools, max_tokens=500)
            if answer != expected:
                misses.append(f"{turn.user!r}: {answer[:100]!r}".replace("|", "/"))
        first = misses[0] if misses else ""
        print(f"| {kind.__name__} | {count - len(misses)}/{count} | {first} |", flush=True)


def _tool_call_text(turn: ToolTurn) -> str:
    """Return what the model should write to call the tools of `turn`."""
    calls = [{"name": name, "arguments": arguments} for name, arguments in turn.calls]
    text = Renderer().text([{"role": "assistant", "tool_calls": calls}])
    return text.split("</think>\n\n")[1].removesuffix("<|im_end|>\n")


def print_speed(model: Model) -> None:
    """Print prefill and decoding speeds of a single stream."""
    print("\n### Speed\n")
    tokens = model.tokenizer.encode("\n".join(standard_library_texts(100_000, seed=99)))
    for size in (2048, 8192):
        start = time.monotonic()
        model.complete(tokens[:size], 1)
        print(f"- prefill of {size} tokens: {size / (time.monotonic() - start):.0f} tokens/s")
    prompt = model.tokenizer.apply_chat_template(
        [user("Count to 100.")], add_generation_prompt=True, enable_thinking=False
    )
    _, last = model.complete(prompt, 300)
    print(f"- decoding, one stream: {last.generation_tps:.0f} tokens/s")


def main() -> None:
    """Print the sheet from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--count", type=int, default=10, help="fresh questions of each kind")
    parser.add_argument("--long", type=int, nargs="*", default=[0, 500, 1000, 2000, 4000, 8000])
    parser.add_argument("--only-long", action="store_true", help="only the table of lengths")
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    model = Model(arguments.model)
    print_long_prompts(model, arguments.long)
    print_errands(model, arguments.long)
    if arguments.only_long:
        return
    print_samples(model)
    print_accuracy(model, arguments.count)
    print_speed(model)


if __name__ == "__main__":
    main()
