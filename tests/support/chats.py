"""Chats without a model: a tokenizer of bytes, and templates for the tiny pair's words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.chat import Message
from specbench.errors import UsageError

WORDS = (  # of the tiny pair: a word for every role, each message after it, and the model's word at the end
    "{% for message in messages %}{{ {'system': 'w50', 'user': 'w51', 'assistant': 'w52'}[message.role] }} "
    "{{ message.content }} {% endfor %}{% if enable_thinking is defined and not enable_thinking %}w53 {% endif %}w52"
)


@dataclass(frozen=True)
class Spelled:
    """Every character is a token. Roles are written as their first letters, switches as they are."""

    own: str | None = "own>"
    refuses: str = "\0"  # what no message may hold
    columns: tuple[str, ...] = ()
    widest: int = 1

    def ids(self, template: str, messages: Sequence[Message], switches: Mapping[str, bool]) -> list[int]:
        if any(self.refuses in message["content"] for message in messages):
            raise UsageError("refused")
        known = [one for one in messages if one["role"] != "system" or "nosystem" not in template]
        said = "".join(f"[{one['role'][0]}]{one['content']}" for one in known)
        thinks = switches.get("enable_thinking", True) or "think" not in template
        return [ord(c) for c in f"{template}{said}[a]{'' if thinks else '-'}"]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def give_template(checkpoint: Path, template: str = WORDS) -> None:
    """Make a checkpoint an instruct model."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(checkpoint)
