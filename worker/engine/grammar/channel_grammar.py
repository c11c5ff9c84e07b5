"""Write the grammars of channel headers, and of the tool calls and answers after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from worker.engine.grammar.answer_grammar import GrammarWriter
from worker.engine.grammar.text_grammar import quoted
from worker.engine.output.channel_format import ChannelFormat
from worker.engine.output.tool_calls.reader import Tool

#: An optional space, where templates and models differ.
_SPACE: Final = "sp: / ?/"


class ChannelGrammarWriter:
    """Writes Lark grammars for one channel format.

    Args:
        channel_format: The format of the model family.
        writer: Writes the rules of schemas.
        tag: Returns a marker as a grammar writes it: by token id, or as text.
    """

    def __init__(
        self, channel_format: ChannelFormat, writer: GrammarWriter, tag: Callable[[str], str]
    ) -> None:
        self._format = channel_format
        self._writer = writer
        self._tag = tag

    def call(self, tools: Sequence[Tool]) -> str:
        """Return the grammar of a tool call after ``to=``, up to its end."""
        return "\n".join(["start: called", *self._called(tools), _SPACE])

    def header(self, answer: str, tools: Sequence[Tool], *, is_first: bool) -> str:
        """Return the grammar of a header, and of its message, in an answer with a schema.

        The grammar ends after the header if the message is reasoning, or a tool call without a
        constraint on its arguments.

        Args:
            answer: The rule of the answer's schema.
            tools: The tools that may be called instead of answering.
            is_first: Whether the prompt contains the start marker of the message.
        """
        form, message = self._format, self._tag(self._format.message)
        kind = f' (sp {self._tag(form.constrain)} "json")?' if form.constrain else ""
        lead = f"{self._tag(form.channel)}" if form.channel else "sp"
        thinking, final = (
            ("", form.final_text) if form.channel else ("to=", f"to={form.final_text}")
        )
        choices = [
            *(f"{quoted(thinking + name)} {message}" for name in sorted(form.thinking)),
            f"{quoted(final)} {kind} sp {message} answer {self._tag(form.last_ends[0])}",
        ]
        rules = [f"answer: {answer}", _SPACE]
        if tools:
            choices.append(f"{quoted('commentary to=' if form.channel else 'to=')} called")
            rules += self._called(tools)
        start = "" if is_first else f'{self._tag(form.start)} "assistant" '
        return "\n".join([f"start: {start}{lead} ({' | '.join(choices)})", *rules])

    def _called(self, tools: Sequence[Tool]) -> list[str]:
        form = self._format
        names = [quoted(form.call_prefix + tool["function"]["name"]) for tool in tools]
        if not form.call_prefix:
            return [f"called: ({' | '.join(names)}) {self._tag(form.message)}"]
        end = self._tag(form.last_ends[-1])
        one = " | ".join(f"{name} head args{n} {end}" for n, name in enumerate(names))
        # The recipient may also follow the role, before the channel.
        channel = f'(sp {self._tag(form.channel)} "commentary")?'
        # Without a space, the word would become part of the tool's name.
        kind = f'(sp {self._tag(form.constrain)} "json" | " json")?'
        head = f"{channel} {kind} sp {self._tag(form.message)}"
        args = [f"args{n}: {self._writer.arguments(tool)}" for n, tool in enumerate(tools)]
        return [f"called: {one}", f"head: {head}", *args]
