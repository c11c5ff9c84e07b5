"""Verifies webhook signatures with OpenAI's SDK, which shares no code with ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai


def verify(secret: str, headers: Mapping[str, str], body: bytes) -> Any:
    """Return the message.

    Raises:
        ValueError: The signature is not that of the secret, or it is not of the last five minutes.
    """
    with openai.OpenAI(api_key="none", webhook_secret=secret) as client:
        client.webhooks.verify_signature(body, headers)
    return json.loads(body)
