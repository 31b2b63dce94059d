"""What a chat is to whoever makes prompts: messages, and a tokenizer that writes them as token ids."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Message = Mapping[str, str]  # its role (system, user or assistant) and its content


class Chat(Protocol):
    """A tokenizer that writes chats."""

    @property
    def own(self) -> str | None:
        """The chat template that comes with it; None where there is none."""
        ...

    def ids(self, template: str, messages: Sequence[Message], switches: Mapping[str, bool]) -> list[int]:
        """The token ids of messages in a template, up to the beginning of an answer. Nothing is added, not even a BOS.

        UsageError, in one line, where the template does not render them.
        """
        ...

    def text(self, ids: Sequence[int]) -> str:
        """An answer as text, without special tokens."""
        ...
