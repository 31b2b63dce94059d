"""Prompts as token ids, one turn of a conversation each, and the set of them that a run decodes."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specbench.chat import Chat
from specbench.data.forms import Applied
from specbench.errors import UsageError
from specbench.wording import clean, grouped


@dataclass(frozen=True)
class Prompt:
    """A text, or one turn of a conversation.

    later: the user's messages after the answer; before: the conversation until now. most: maximum tokens of the
    last turn's prompt, 0 without later turns. reference: the answer to the first turn in the data, or empty. fields:
    columns of its row that the chat takes, as a JSON object.
    """

    id: str
    category: str
    text: str
    ids: tuple[int, ...]
    later: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    most: int = 0
    reference: str = ""
    fields: str = "{}"

    @property
    def turn(self) -> int:
        """The number of the turn in its conversation, from 1."""
        return len(self.before) // 2 + 1

    @property
    def turns(self) -> int:
        return self.turn + len(self.later)

    @property
    def draw(self) -> str:
        """The key from which the seeds of its decodes are derived."""
        return self.id if self.turn == 1 else f"{self.id}\0{self.turn}"


@dataclass(frozen=True)
class PromptSet:
    """`rejected` counts empty and non-text rows among all `read`, too long ones among those drawn to meet `limit`.

    form: the form of its texts; applied: their chat template; instruct: whether the target's tokenizer has one.
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
        """The maximum number of decodes."""
        return sum(prompt.turns for prompt in self.prompts)

    @property
    def longest(self) -> int:
        """The maximum number of tokens of a prompt, later turns included."""
        return max(max(len(prompt.ids), prompt.most) for prompt in self.prompts)

    @property
    def ids(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """The tokens of every first turn, by the name and number of its prompt."""
        return {(prompt.id, prompt.turn): prompt.ids for prompt in self.prompts}

    def in_order(self, rows: Sequence[int]) -> "PromptSet":
        prompts = tuple(self.prompts[row] for row in rows)
        return replace(self, prompts=prompts, sha256=fingerprint(prompts, self.applied))

    def after(self, earlier: Sequence["PromptSet"]) -> "PromptSet":
        """The same prompts and `sha256`, those of `earlier` and smaller samples first, in their order.

        UsageError if this sample lacks one of theirs: shares of categories are rounded.
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
        """The format of its texts as columns of results.csv."""
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
    """sha256 of the token ids as a JSON list of lists; for conversations also of the data for later turns."""
    content: list[Any] = [prompt.ids for prompt in prompts]
    if applied and any(prompt.later for prompt in prompts):
        further = [prompt.later for prompt in prompts]
        content = [content, further, applied.template, applied.system, applied.thinking]
        content += [applied.arguments] if applied.arguments else []
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


# --- turns ------------------------------------------------------------------------------------------------------------


def next_turn(prompt: Prompt, answer: Sequence[int], prompts: PromptSet, chat: Chat) -> Prompt | None:
    """The next turn's prompt after an answer, as a server would write it: the whole conversation again, as text.
    None if there is no later turn, the prompt is longer than the set's limit, or the template refuses it."""

    if not prompt.later or prompts.applied is None:
        return None
    text, *later = prompt.later
    before = (*prompt.before, prompt.text, chat.text(answer))
    try:
        ids = tuple(prompts.applied.ids(chat, (*before, text), prompt.fields))
    except UsageError:
        return None
    found = replace(prompt, text=text, ids=ids, later=tuple(later), before=before)
    return found if len(ids) <= prompts.longest else None


# --- sampling ---------------------------------------------------------------------------------------------------------
# A sample that is fair to every category and fixed by a seed, whatever the order of the data.
# The first N rows would not be: the first 80 of Spec-Bench are MT-Bench only.

T = TypeVar("T")


def sample(categories: Sequence[str], take: Callable[[int], T | None], limit: int | None, seed: int) -> list[T]:
    """The results of `take` for `limit` rows, each category in proportion to its rows; in the order of the data.

    `take` is costly and may refuse a row with None: it is called once for a row, and only as
    rows are drawn. A category that runs out of usable rows leaves its share to the others.
    """
    if limit is None:
        return [item for row in range(len(categories)) if (item := take(row)) is not None]
    # categories and rows shuffled by the seed, equally on every Python version
    groups = grouped(range(len(categories)), lambda row: categories[row])
    shuffled = sorted(groups, key=lambda group: digest(seed, categories[group[0]]))
    queues = [sorted(group, key=lambda row: digest(seed, row)) for group in shuffled]
    sizes = [len(queue) for queue in queues]
    drawn: list[list[tuple[int, T]]] = [[] for _ in queues]
    while True:
        quotas = apportion(limit, sizes)
        for queue, items, quota in zip(queues, drawn, quotas, strict=True):
            while queue and len(items) < quota:
                number = queue.pop(0)
                usable = take(number)
                if usable is not None:
                    items.append((number, usable))
        if all(len(items) >= quota for items, quota in zip(drawn, quotas, strict=True)):
            break
        sizes = [size if queue else len(items) for size, queue, items in zip(sizes, queues, drawn, strict=True)]
    chosen = [pair for items, quota in zip(drawn, quotas, strict=True) for pair in items[:quota]]
    return [item for _, item in sorted(chosen, key=lambda pair: pair[0])]


def digest(seed: int, what: object) -> bytes:
    return hashlib.sha256(f"{seed}:{what}".encode()).digest()


def apportion(limit: int, sizes: Sequence[int]) -> list[int]:
    """Largest remainder; if the limit allows, every category that has rows gets one."""
    total = sum(sizes)
    limit = min(limit, total)
    least = [int(size > 0 and limit >= sum(s > 0 for s in sizes)) for size in sizes]
    counts = [max(least[i], limit * size // total) if total else 0 for i, size in enumerate(sizes)]

    def lack(i: int) -> int:
        return limit * sizes[i] - counts[i] * total

    while sum(counts) < limit:
        counts[max(range(len(sizes)), key=lack)] += 1
    while sum(counts) > limit:
        counts[min((i for i in range(len(sizes)) if counts[i] > least[i]), key=lack)] -= 1
    return counts
