"""What a draft is begun as: fresh, pruned from its target, a given checkpoint, or what a folder holds already.

Knows the options of a start and which function makes it; must not know how a draft is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from specbench.errors import UsageError
from specbench.jobs.train_data import Teaching
from specbench.models.checkpoints import loading, pairs
from specbench.models.checkpoints.check import check_pair
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.frequent import most_frequent
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.network.reduced import SIZE, reduce_head
from specbench.replacing import filling
from specbench.training.cache import Example
from specbench.training.distil import Lesson
from specbench.training.recipe import Recipe
from specbench.training.start.pruning import Keep, pruned
from specbench.training.start.saving import save_draft
from specbench.training.start.starting import Shape, fresh, sized
from specbench.wording import counted

FRESH, PRUNED = "fresh", "pruned"
TEXTS, LONGEST = 32, 256  # sequences that importance is measured on, and their tokens


@dataclass(frozen=True)
class Begun:
    """What learning begins with: the student on the teacher's device, in `words` what it is begun as, and its shape.

    save: writes a student into a folder, ready to use. lesson: what it learns, where that is not the rows of a network.
    card: what its model card says otherwise than of a network. command: of specbench, to try it with.
    """

    student: Any
    words: str
    shape: str
    save: Callable[[Any, Path], None]
    lesson: Lesson | None = None
    card: Mapping[str, str] = field(default_factory=dict)
    command: str = "sweep-k"


class Beginning(Protocol):
    """What a command was asked to begin with."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same where a training is gone on with."""
        ...

    def check(self, config: Any, tokenizer: Any) -> None:
        """UsageError or UnusableModelError for what cannot be, by the configuration of a target."""
        ...

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        """What learning begins with; folder: that of a run that is gone on with, whose checkpoint has the weights."""
        ...


@dataclass(frozen=True)
class Start:
    """fresh, pruned, or a checkpoint; sizes that are None follow from the others. vocabulary: tokens of the head."""

    begin: str = FRESH
    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    parameters: int | None = None
    keep: Keep = "even"
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if self.begin not in (FRESH, PRUNED) and (given := self.sizes):
            raise UsageError(f"--{given[0].replace('_', '-')}: {self.begin} has its own shape; leave it out")
        if self.begin == PRUNED and (given := [name for name in self.sizes if name not in ("layers", "hidden")]):
            option = given[0].replace("_", "-")
            raise UsageError(f"--{option}: what is pruned has --layers and --hidden, the rest follows")
        if self.begin == PRUNED and not self.sizes:
            raise UsageError("--from pruned: say how much is kept with --layers, --hidden or both")
        if self.parameters and self.hidden:
            raise UsageError("--parameters and --hidden: the width follows from one of them; leave the other out")

    @property
    def sizes(self) -> list[str]:
        """The sizes that were given."""
        names = ("layers", "hidden", "intermediate", "heads", "kv_heads", "parameters")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def identity(self) -> dict[str, Any]:
        return asdict(self)

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        """A network, which has the shape of the draft in the folder of a run that is gone on with."""
        student = begun(self, given, recipe, folder)
        return Begun(student, words(self), said_of(student), lambda network, place: save_network(network, place, given))

    def check(self, config: Any, tokenizer: Any) -> None:
        """UsageError or UnusableModelError for what no draft of a target can begin as, by its configuration."""
        text = config.get_text_config(decoder=True)
        if self.begin == FRESH:
            shape_of(self, config)
        elif self.begin == PRUNED and (self.layers or 1) > text.num_hidden_layers:
            raise UsageError(f"--layers {self.layers}: the target has {text.num_hidden_layers}")
        elif self.begin == PRUNED and (self.hidden or 1) > text.hidden_size:
            raise UsageError(f"--hidden {self.hidden}: the target's width is {text.hidden_size}")
        elif self.begin != PRUNED:
            compatible(self.begin, config, tokenizer)
        if self.vocabulary is not None and self.vocabulary > text.vocab_size:
            raise UsageError(f"--draft-vocabulary {self.vocabulary}: the target knows {text.vocab_size} tokens")


def begun(asked: Start, given: Teaching, recipe: Recipe, folder: Path | None) -> Any:
    """The network that learning begins with, on the teacher's device.

    folder: that of a run that is gone on with; its draft has the shape, and its checkpoint the weights.
    """
    if folder is not None:
        return loaded(str(folder), given)
    student = first(asked, given, recipe)
    if asked.vocabulary is not None:
        ids = most_frequent(given.cache.counts(), asked.vocabulary, given.special)
        student = reduce_head(student, ids)
    return student.to(given.device)


def save_network(network: Any, folder: Path, given: Teaching) -> None:
    """A draft as a checkpoint of its own, in the target's dtype and with its tokenizer."""
    save_draft(network, folder, given.dtype)
    with filling(folder) as scratch:
        given.tokenizer.save_pretrained(scratch)


def first(asked: Start, given: Teaching, recipe: Recipe) -> Any:
    """The network with the whole vocabulary."""
    if asked.begin == FRESH:
        shape = shape_of(asked, given.network.config)
        weight = given.network.get_input_embeddings().weight
        return fresh(shape, given.network.config, recipe.seed, embedding=weight)
    if asked.begin == PRUNED:
        texts = some(given.cache.train)
        return pruned(given.network, layers=asked.layers, hidden=asked.hidden, keep=asked.keep, texts=texts)
    return loaded(asked.begin, given)


def shape_of(asked: Start, config: Any) -> Shape:
    """The shape of a fresh draft: two layers of half the target's width, unless something is said."""
    layers = asked.layers or 2
    if asked.parameters is not None:
        return sized(asked.parameters, layers, config, asked.vocabulary)
    half = config.get_text_config(decoder=True).hidden_size // 2
    return Shape.of(layers, asked.hidden or max(half - half % 32, 32), asked.intermediate, asked.heads, asked.kv_heads)


def some(examples: Sequence[Example]) -> list[Sequence[int]]:
    """A few sequences, evenly from all examples."""
    step = max(len(examples) // TEXTS, 1)
    return [examples[number].ids[:LONGEST] for number in range(0, len(examples), step)][:TEXTS]


def loaded(name: str, given: Teaching) -> Any:
    """A checkpoint as a draft of this target; UnusableModelError where their tokens differ."""
    checkpoint = compatible(name, given.network.config, given.tokenizer)
    return loading.load_model(checkpoint, torch.float32, given.device).model


def compatible(name: str, config: Any, tokenizer: Any) -> Checkpoint:
    """The checkpoint of a name whose tokens are those of a target."""
    checkpoint = pairs.resolve(name, None)
    check_pair(tokenizer, load_tokenizer(checkpoint), config, load_config(checkpoint))
    return checkpoint


def words(asked: Start) -> str:
    """What a draft is begun as."""
    if asked.begin == FRESH:
        return "a fresh draft"
    return "a part of the target" if asked.begin == PRUNED else asked.begin


def said_of(student: Any) -> str:
    """The shape of a network, for readers."""
    config = student.config.get_text_config(decoder=True)
    total = sum(parameter.numel() for parameter in student.parameters())
    known = getattr(student.config, SIZE, None)
    head = "" if known is None else f", a head of {known:,} tokens"
    return f"{counted(config.num_hidden_layers, 'layer')} of width {config.hidden_size}, {total:,} parameters{head}"
