"""What `specbench train head` begins with: a fresh head of some kind on its target, and the lesson that it learns.

Knows the options of a head and which functions make it; must not know how a head learns or drafts.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.jobs.train_data import Teaching
from specbench.jobs.train_start import Begun
from specbench.models.checkpoints.frequent import most_frequent
from specbench.models.heads.recognition import WORDS
from specbench.models.network.reduced import SIZE
from specbench.training.evaluation import chosen, sampled
from specbench.training.heads.beginning import HeadKind, beginning, save_head
from specbench.training.heads.layouts import Asked
from specbench.training.heads.lesson import HeadLesson
from specbench.training.recipe import Recipe


@dataclass(frozen=True)
class HeadStart:
    """A fresh head. steps: the drafts that learn, of EAGLE-3 each from its own states, of Medusa each a head by itself.

    intermediate: the width of the MLP of EAGLE-3, None for the target's; vocabulary: how many tokens it knows.
    """

    kind: HeadKind
    steps: int = 4
    intermediate: int | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if self.kind == "medusa" and self.intermediate is not None:
            raise UsageError("--intermediate: Medusa heads have no MLP; leave it out")

    @property
    def identity(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, config: Any, tokenizer: Any) -> None:
        """UsageError for a vocabulary that is larger than the target's."""
        size = config.get_text_config(decoder=True).vocab_size
        if self.vocabulary is not None and self.vocabulary > size:
            raise UsageError(f"--draft-vocabulary {self.vocabulary}: the target knows {size} tokens")

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        return head_begun(self.kind, f"a fresh {WORDS[self.kind]} head", given, recipe, self.asked(given, recipe))

    def asked(self, given: Teaching, recipe: Recipe) -> Asked:
        ids = None
        if self.vocabulary is not None and self.vocabulary < given.teacher.width:
            ids = most_frequent(given.cache.counts(), self.vocabulary, given.special)
        return Asked(ids, self.steps, given.verifier, self.intermediate, recipe.seed)


def head_begun(kind: HeadKind, words: str, given: Teaching, recipe: Recipe, asked: Asked) -> Begun:
    """A head, called `words`, with its lesson.

    The same for a run that is gone on with: equal seeds make equal heads, and the checkpoint has the weights.
    """
    student, layout = beginning(kind, given.network, asked)
    held_out = chosen(given.cache.held_out, recipe.held_out)
    judged = (held_out, recipe, asked.steps, sampled(given.cache, recipe))
    return Begun(
        student=student.to(given.device),
        words=words,
        shape=shape_of(student),
        save=lambda trained, place: save_head(trained, layout, place, given.dtype),
        lesson=HeadLesson(given.teacher, student.head.taps, *judged),
        card={"what": f"head ({WORDS[kind]})", "alpha": "the first drafts of all places"},
        command="run",
    )


def shape_of(student: Any) -> str:
    """The sizes of a head, and what it reads, for readers."""
    total = sum(parameter.numel() for parameter in student.parameters())
    known = getattr(student.config, SIZE, None)
    head = "" if known is None else f", a vocabulary of {known:,} tokens"
    read = ", ".join("the last hidden state" if tap == "z" else f"h[{tap}]" for tap in student.head.taps)
    return f"{total:,} parameters{head}, reads {read}"
