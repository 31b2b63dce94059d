"""A chat as the code that makes prompts sees it: messages, a tokenizer that renders them as token ids, and named values
for its template or its server."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, str]  # role (system, user or assistant) and content


class Chat(Protocol):
    @property
    def own(self) -> str | None:
        """Its own chat template; None if missing."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of data besides the messages that it takes, as arguments by their names."""

    @property
    def widest(self) -> int:
        """The most ids of a prompt for one token of an answer."""

    def ids(self, template: str, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        """Token ids of messages in a template, up to the start of an answer. Nothing is added, not even a BOS.

        UsageError, in one line, if the template does not render them.
        """

    def text(self, ids: Sequence[int]) -> str:
        """An answer as text, without special tokens."""


def written_fields(given: Any) -> str | None:
    """Named values as a JSON object, sorted by name; None without any.

    Given: NAME=VALUE, a list of these, a JSON object or list as text, or a mapping. A value is JSON, else text.
    ValueError, in one line, for anything else.
    """
    found = read(given) if isinstance(given, str) and given[:1] in ("{", "[") else given
    if not isinstance(found, Mapping):
        items = [found] if isinstance(found, str) else found or []
        pairs = [str(item).partition("=") for item in items]
        if wrong := [item for item, (name, equals, _) in zip(items, pairs, strict=True) if not (name and equals)]:
            raise ValueError(
                f"{str(wrong[0])[:60]!r} is neither NAME=VALUE nor a JSON object: write it like min_tokens=8"
            )
        found = {name: read(value) for name, _, value in pairs}
    return json.dumps(found, sort_keys=True) if found else None


def read(text: str) -> Any:
    """A text parsed as JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
