"""What is decoded: prompts as token ids, one turn of a conversation each, and the set of them that a run takes.

Knows what became of a data set's texts; must not know how they were read, written or tokenized.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specbench.data.chats import Applied
from specbench.errors import UsageError
from specbench.wording import clean


@dataclass(frozen=True)
class Prompt:
    """What is decoded at once: a text, or one turn of a conversation.

    later: what will be said after the answer; before: what was said and answered until now, in turn. most: the tokens
    that the last turn's prompt may have, 0 of a prompt without later turns. reference: the answer to the first turn
    that the data bring along; empty where there is none.
    """

    id: str
    category: str
    text: str
    ids: tuple[int, ...]
    later: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    most: int = 0
    reference: str = ""

    @property
    def turn(self) -> int:
        """Which turn of its conversation it is, from 1."""
        return len(self.before) // 2 + 1

    @property
    def turns(self) -> int:
        """How many turns the conversation has."""
        return self.turn + len(self.later)

    @property
    def draw(self) -> str:
        """What the seeds of its decodes depend on."""
        return self.id if self.turn == 1 else f"{self.id}\0{self.turn}"


@dataclass(frozen=True)
class PromptSet:
    """`rejected` counts empty and not-text rows among all `read`, too long ones among those drawn to meet `limit`.

    form: the name of the form of its texts; applied: the chat template that they are written in; instruct: whether the
    target's tokenizer has one.
    """

    name: str
    prompts: tuple[Prompt, ...]
    read: int
    rejected: Mapping[str, int]
    sha256: str
    revision: str | None
    form: str = "text"
    applied: Applied | None = None
    instruct: bool = False

    @property
    def turns(self) -> int:
        """How many decodes it takes at most."""
        return sum(prompt.turns for prompt in self.prompts)

    @property
    def longest(self) -> int:
        """The most tokens that any prompt has, later turns included."""
        return max(max(len(prompt.ids), prompt.most) for prompt in self.prompts)

    @property
    def ids(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """The tokens of every first turn, by the name of its prompt and its number."""
        return {(prompt.id, prompt.turn): prompt.ids for prompt in self.prompts}

    def in_order(self, rows: Sequence[int]) -> "PromptSet":
        """The same prompts in another order."""
        prompts = tuple(self.prompts[row] for row in rows)
        return replace(self, prompts=prompts, sha256=fingerprint(prompts, self.applied))

    def after(self, earlier: Sequence["PromptSet"]) -> "PromptSet":
        """The same prompts, those of `earlier` and smaller samples first, in their order; the same `sha256` as without.

        UsageError where this sample lacks one of theirs: shares of categories are rounded.
        """
        order: list[Prompt] = []
        for one in (*earlier, self):
            known = set(order)
            order += [prompt for prompt in one.prompts if prompt not in known]
        if len(order) > len(self.prompts):
            raise UsageError(
                f"a sample of {len(self.prompts)} prompts of {clean(self.name, 300)} lacks "
                f"{len(order) - len(self.prompts)} of those that were measured: choose another --limit"
            )
        return replace(self, prompts=tuple(order))

    def row(self) -> dict[str, Any]:
        """What its texts became, as columns of results.csv."""
        left_out = ", ".join(f"{count} {reason}" for reason, count in self.rejected.items() if count)
        template = self.applied.source if self.applied else "not applied" if self.instruct else "none"
        return {
            "rejected": left_out,
            "prompts_sha256": self.sha256,
            "dataset_revision": self.revision,
            "prompt_form": self.form,
            "chat_template_resolved": template,
            "chat_template_sha256": self.applied.sha256 if self.applied else "",
        }


def fingerprint(prompts: Sequence[Prompt], applied: Applied | None = None) -> str:
    """sha256 of the token ids as a JSON list of lists: which token stands where, in which prompt, in which order.

    Of conversations also what their later turns are made of.
    """
    content: list[Any] = [prompt.ids for prompt in prompts]
    if applied and any(prompt.later for prompt in prompts):
        further = [prompt.later for prompt in prompts]
        content = [content, further, applied.template, applied.system, applied.thinking]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
