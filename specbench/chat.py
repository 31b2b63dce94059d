"""A chat as the code that makes prompts sees it: messages, and a tokenizer that renders them as token ids."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Message = Mapping[str, str]  # role (system, user or assistant) and content


class Chat(Protocol):
    """A tokenizer that renders chats."""

    @property
    def own(self) -> str | None:
        """Its own chat template; None if missing."""
        ...

    def ids(self, template: str, messages: Sequence[Message], switches: Mapping[str, bool]) -> list[int]:
        """Token ids of messages in a template, up to the start of an answer. Nothing is added, not even a BOS.

        UsageError, in one line, if the template does not render them.
        """
        ...

    def text(self, ids: Sequence[int]) -> str:
        """An answer as text, without special tokens."""
        ...
