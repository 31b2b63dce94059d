"""The chat of a tokenizer: transformers renders the template, and nothing is added to what the template writes.

Knows transformers' tokenizers; must not know data sets or prompts. A template is code of the checkpoint, which
transformers runs in a sandbox of Jinja.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.chat import Message
from specbench.errors import UsageError
from specbench.wording import first_line

# Templates that ask for today's date would make other prompts every day. Llama 3 has this one for its default.
DATE = "26 Jul 2024"
DATED = "{% macro strftime_now(format) %}" + DATE + "{% endmacro +%}"
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))  # of published models


@dataclass(frozen=True)
class TokenizerChat:
    """A tokenizer of transformers as a `specbench.chat.Chat`."""

    tokenizer: Any

    @property
    def own(self) -> str | None:
        try:
            found: str = self.tokenizer.get_chat_template()
        except (ValueError, AttributeError):  # none, several without a default, or a tokenizer that knows no chats
            return None
        return found or None

    def ids(self, template: str, messages: Sequence[Message], switches: Mapping[str, bool]) -> list[int]:
        dated = DATED + template if "strftime_now" in template else template
        try:
            found: list[int] = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=dated,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **switches,
            )
        except Exception as error:  # a template raises whatever it likes
            raise UsageError(
                f"the chat template does not render these messages ({first_line(error)}): change them, or give another "
                "one, or none, with --chat-template"
            ) from error
        return found

    def text(self, ids: Sequence[int]) -> str:
        found: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return found


def runs_on(tokenizer: Any, eos: Collection[int]) -> list[str]:
    """That answers do not end at the token which the tokenizer of a chat model ends them with; else nothing."""
    end = tokenizer.eos_token_id
    if TokenizerChat(tokenizer).own is None or end is None or end in eos:
        return []
    return [
        f"the tokenizer ends a turn with {tokenizer.eos_token!r} ({end}), which the generation config does not name "
        f"among {sorted(eos)}: answers may run on after their end"
    ]


def thinking_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens between which a text thinks aloud, those that open and those that close; none if there are none."""
    known = tokenizer.get_vocab()
    there = [pair for pair in THINKING if known.keys() >= {*pair}]
    return tuple(known[opens] for opens, _ in there), tuple(known[closes] for _, closes in there)
