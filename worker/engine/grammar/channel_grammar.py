"""Write the grammars of headers, of calls that headers make, and of answers behind headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from worker.engine.grammar.answer_grammar import GrammarWriter
from worker.engine.grammar.text_grammar import quoted
from worker.engine.output.channel_format import ChannelFormat
from worker.engine.output.tool_calls.reader import Tool

#: Where templates and models write a space or none.
_SPACE: Final = "sp: / ?/"


class ChannelGrammarWriter:
    """Writes grammars that the library can follow.

    Args:
        form: How the family frames its messages.
        writer: Of schemas.
        tag: How a grammar writes a tag, which may be a token of its own.
    """

    def __init__(
        self, form: ChannelFormat, writer: GrammarWriter, tag: Callable[[str], str]
    ) -> None:
        self._form = form
        self._writer = writer
        self._tag = tag

    def call(self, tools: Sequence[Tool]) -> str:
        """Return the grammar of what follows ``to=``, up to the end of the call."""
        return "\n".join(["start: called", *self._called(tools), _SPACE])

    def header(self, answer: str, tools: Sequence[Tool], *, is_first: bool) -> str:
        """Return the grammar of a header in an answer that has a form, and of what must follow it.

        It is over behind the header of reasoning, or of a call whose arguments are free.

        Args:
            answer: The rule of the form.
            tools: What may be called instead.
            is_first: Whether the prompt holds the start of the message.
        """
        form, message = self._form, self._tag(self._form.message)
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
        form = self._form
        names = [quoted(form.call_prefix + tool["function"]["name"]) for tool in tools]
        if not form.call_prefix:
            return [f"called: ({' | '.join(names)}) {self._tag(form.message)}"]
        end = self._tag(form.last_ends[-1])
        one = " | ".join(f"{name} head args{n} {end}" for n, name in enumerate(names))
        # The recipient stands in the role as well, before the channel.
        channel = f'(sp {self._tag(form.channel)} "commentary")?'
        # A word must not run into the one before it: it would become part of the name.
        kind = f'(sp {self._tag(form.constrain)} "json" | " json")?'
        head = f"{channel} {kind} sp {self._tag(form.message)}"
        args = [f"args{n}: {self._writer.arguments(tool)}" for n, tool in enumerate(tools)]
        return [f"called: {one}", f"head: {head}", *args]
