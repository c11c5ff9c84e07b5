"""Choose the parser of an answer by the model's formats and the prompt."""

from __future__ import annotations

from domain.chat.generation import PreparedPrompt
from worker.engine.output.channel_parser import ChannelParser
from worker.engine.output.output_parser import AnswerParser, SectionParser
from worker.engine.output.tool_calls.reader import CallRules
from worker.engine.ports import LoadedModel


def parser_for(
    model: LoadedModel, prompt: PreparedPrompt, stop: tuple[str, ...] = ()
) -> AnswerParser:
    """Return the parser of the answer to ``prompt``, before its first token.

    Args:
        model: The model that answers.
        stop: Stop sequences.
    """
    tags = None if prompt.is_raw else model.think_tags
    calls = None
    if model.tool_format is not None and prompt.tools:
        calls = CallRules(format=model.tool_format, tools=prompt.tools)
    if model.channel_format is not None and not prompt.is_raw:
        return ChannelParser(model.channel_format, stop, calls=calls)
    thinking = tags is not None and not prompt.opened and model.opens_thinking(prompt.tokens)
    dropped = () if prompt.is_raw else model.dropped
    return SectionParser(tags, stop, thinking=thinking, calls=calls, dropped=dropped)
