"""Which chat template a data set's prompts are written in, with which system message and which switches.

Knows the chat of a tokenizer by its protocol; must not know rows, models or how a template is rendered.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.chat import Chat
from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.wording import clean, clean_path, first_line

NONE, ALWAYS = "none", "always"  # of --chat-template; None is auto, anything else the path of a file
OWN = "own"
LARGEST = 1 << 20  # bytes of a template
ROLES = ("user", "assistant")  # in turn
PROBE = ("Hello",)


@dataclass(frozen=True)
class ChatSettings:
    """What was asked for, and the chat of the tokenizer (None: the engine has none). answer: its tokens at most."""

    chat: Chat | None = None
    template: str | None = None
    system: str | None = None
    thinking: bool | None = None
    answer: int = 0

    @property
    def own(self) -> str | None:
        """The tokenizer's own template."""
        return self.chat.own if self.chat else None


@dataclass(frozen=True)
class Applied:
    """A chat template as prompts are written in it. source: `own`, or the name of the file."""

    source: str
    template: str
    system: str | None = None
    thinking: bool | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.template.encode()).hexdigest()

    @property
    def switches(self) -> Mapping[str, bool]:
        """Families of models have two names for it; a template does not see the one that it does not ask for."""
        return {} if self.thinking is None else {"enable_thinking": self.thinking, "thinking": self.thinking}

    def ids(self, chat: Chat, said: Sequence[str]) -> list[int]:
        """The prompt after what was said: the texts of user and model in turn, the user's first and last."""
        first = [{"role": "system", "content": self.system}] if self.system is not None else []
        rest = [{"role": ROLES[number % 2], "content": text} for number, text in enumerate(said)]
        return chat.ids(self.template, [*first, *rest], self.switches)


def applied_to(name: str, asked: ChatSettings, instructions: bool) -> Applied | None:
    """The chat template of a data set; None where its prompts are plain text.

    By itself it is the tokenizer's own, where there is one and the rows are `instructions`. UsageError for a template
    that is not there or not usable, and for a system message or a switch without a place.
    """
    found = chosen_template(asked, instructions)
    if found is None:
        if asked.system is not None or asked.thinking is not None:
            option = "--system" if asked.system is not None else "--thinking"
            raise UsageError(f"{option} needs a chat template, and the prompts of {name} {why_plain(asked)}")
        return None
    if asked.chat is None:
        raise UsageError("--chat-template: this backend takes plain text only")
    applied = Applied(*found, asked.system, asked.thinking)
    check_places(asked.chat, applied)
    return applied


def chosen_template(asked: ChatSettings, instructions: bool) -> tuple[str, str] | None:
    """Where the template comes from, and its text."""
    if asked.template == NONE or (asked.template is None and not instructions):
        return None
    if asked.template not in (None, ALWAYS):
        return clean(asked.template, 300), read_template(Path(os.path.expanduser(str(asked.template))))
    if asked.own is None and asked.template == ALWAYS:
        raise UsageError("--chat-template always: the target's tokenizer has no chat template; give a file with one")
    return (OWN, asked.own) if asked.own is not None else None


def why_plain(asked: ChatSettings) -> str:
    if asked.template == NONE:
        return "are plain text with --chat-template none"
    if asked.own is None:
        return "are plain text, as the target's tokenizer has no chat template: give a file with --chat-template"
    return "are plain text to be continued: add --chat-template always"


def read_template(path: Path) -> str:
    """The template in a file."""
    try:
        return read_whole(path, LARGEST).decode()
    except OSError as error:
        reason = error.strerror or first_line(error)
    except ValueError as error:  # bytes that are no text, a path that none can have
        reason = first_line(error)
    raise UsageError(
        f"cannot read the chat template {clean_path(path)} ({reason}): --chat-template takes auto, none, always, or a "
        "file"
    )


def check_places(chat: Chat, applied: Applied) -> None:
    """UsageError for a system message that the template does not write, and for a switch that changes nothing."""
    written = applied.ids(chat, PROBE)
    if applied.system and written == Applied("", applied.template, None, applied.thinking).ids(chat, PROBE):
        raise UsageError("--system: the chat template has no place for a system message; leave it out")
    if applied.thinking is not None:
        other = Applied("", applied.template, applied.system, not applied.thinking).ids(chat, PROBE)
        if written == other:
            raise UsageError("--thinking: the chat template has no such switch (enable_thinking); leave it out")
