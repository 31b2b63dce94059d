"""Starting points of training: a network that is fresh, pruned from its target, or given; a head; a masked draft."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UnusableModelError, UsageError
from specbench.files import filling
from specbench.jobs.training.data import Teaching
from specbench.models.checkpoints import loading, names
from specbench.models.checkpoints.check import check_pair
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.checkpoints.reduced import most_frequent
from specbench.models.heads import files
from specbench.models.heads.recognition import WORDS, Head
from specbench.models.network.passes import windows_of
from specbench.models.network.sampling import SIZE, reduce_head
from specbench.training.heads import HeadLesson, Masked
from specbench.training.new_heads import HeadKind, HeadOptions, beginning, save_head
from specbench.training.pruning import Keep, pruned
from specbench.training.recipe import Recipe
from specbench.training.start import Shape, fresh, save_draft, sized
from specbench.wording import counted

FRESH, PRUNED = "fresh", "pruned"
TEXTS, LONGEST = 32, 256  # sequences for measuring importance, and their tokens
MASK = "pard_token"  # in config.json: the token for a masked position
ALPHA = "the first drafts of all places"  # description of α for a head or a masked draft


@dataclass(frozen=True)
class Begun:
    """A starting point: the student on the teacher's device, its description in `words`, and its shape.

    save: writes a ready-to-use student to a folder. lesson: its training task, if not the rows of a network.
    card: changes to the model card of a network. command: a specbench command to try it with.
    """

    student: Any
    words: str
    shape: str
    save: Callable[[Any, Path], None]
    lesson: HeadLesson | None = None
    card: Mapping[str, str] = field(default_factory=dict)
    command: str = "sweep-k"


@dataclass(frozen=True)
class Start:
    """fresh, pruned, or a checkpoint; sizes that are None follow from the others. vocabulary: tokens of the head.

    Every starting point has an `identity`, the values that must match to continue a training; `check`, which raises
    UsageError or UnusableModelError if a target's configuration does not allow it; and `begun`, which builds it.
    """

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
        names = ("layers", "hidden", "intermediate", "heads", "kv_heads", "parameters")
        sizes = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if self.begin not in (FRESH, PRUNED) and sizes:
            raise UsageError(f"{sizes[0]}: {self.begin} has its own shape; leave it out")
        if self.begin == PRUNED and (other := [name for name in sizes if name not in ("--layers", "--hidden")]):
            raise UsageError(f"{other[0]}: a pruned draft has --layers and --hidden, the rest follows")
        if self.begin == PRUNED and not sizes:
            raise UsageError("--from pruned: set how much is kept with --layers, --hidden or both")
        if self.parameters and self.hidden:
            raise UsageError("--parameters and --hidden: the width follows from one of them; leave the other out")

    @property
    def identity(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        return {FRESH: "a fresh draft", PRUNED: "a part of the target"}.get(self.begin, self.begin)

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        """A network; folder: that of a continued run, whose draft has its shape and whose checkpoint the weights."""
        student = begun(self, given, recipe, folder)
        return Begun(
            student,
            self.words,
            said_of(student),
            lambda network, place: save_network(network, place, given.tokenizer, given.dtype),
        )

    def check(self, config: Any, tokenizer: Any) -> None:
        text = config.get_text_config(decoder=True)
        if self.begin == FRESH:
            shape_of(self, config)
        elif self.begin != PRUNED:
            compatible(self.begin, config, tokenizer)
        elif (self.layers or 1) > text.num_hidden_layers:
            raise UsageError(f"--layers {self.layers}: the target has {text.num_hidden_layers}")
        elif (self.hidden or 1) > text.hidden_size:
            raise UsageError(f"--hidden {self.hidden}: the target's width is {text.hidden_size}")
        refuse_vocabulary(self.vocabulary, config)


def refuse_vocabulary(vocabulary: int | None, config: Any) -> None:
    """Raise UsageError for a vocabulary larger than the target's."""
    size = config.get_text_config(decoder=True).vocab_size
    if vocabulary is not None and vocabulary > size:
        raise UsageError(f"--draft-vocabulary {vocabulary}: the target knows {size} tokens")


def begun(plan: Start, given: Teaching, recipe: Recipe, folder: Path | None) -> Any:
    """The initial network, on the teacher's device; folder: of a continued run, whose draft has its shape."""
    if folder is not None:
        return loaded(str(folder), given)
    student = first(plan, given, recipe)
    if plan.vocabulary is not None:
        ids = most_frequent(given.cache.counts(), plan.vocabulary, given.special)
        student = reduce_head(student, ids)
    return student.to(given.teacher.device)


def save_network(network: Any, folder: Path, tokenizer: Any, dtype: torch.dtype | None = None) -> None:
    """Save a draft as a checkpoint, by default in its own dtype. Its weights appear last."""
    with filling(folder) as scratch:
        tokenizer.save_pretrained(scratch)
    save_draft(network, folder, dtype)


def first(plan: Start, given: Teaching, recipe: Recipe) -> Any:
    """The network with the full vocabulary."""
    if plan.begin == FRESH:
        shape = shape_of(plan, given.network.config)
        weight = given.network.get_input_embeddings().weight
        return fresh(shape, given.network.config, recipe.seed, embedding=weight)
    if plan.begin == PRUNED:
        examples = given.cache.train
        step = max(len(examples) // TEXTS, 1)
        texts = [examples[number].ids[:LONGEST] for number in range(0, len(examples), step)][:TEXTS]
        return pruned(given.network, layers=plan.layers, hidden=plan.hidden, keep=plan.keep, texts=texts)
    return loaded(plan.begin, given)


def shape_of(plan: Start, config: Any) -> Shape:
    """The shape of a fresh draft: by default two layers of half the target's width."""
    layers = plan.layers or 2
    if plan.parameters is not None:
        return sized(plan.parameters, layers, config, plan.vocabulary)
    half = config.get_text_config(decoder=True).hidden_size // 2
    return Shape.of(layers, plan.hidden or max(half - half % 32, 32), plan.intermediate, plan.heads, plan.kv_heads)


def loaded(name: str, given: Teaching) -> Any:
    """Load a checkpoint as a draft of this target. UnusableModelError if their tokens differ."""
    checkpoint = compatible(name, given.network.config, given.tokenizer)
    return loading.load_model(checkpoint, torch.float32, given.teacher.device).model


def compatible(name: str, config: Any, tokenizer: Any) -> Checkpoint:
    """Resolve a checkpoint and check that its tokens match the target's."""
    checkpoint = names.resolve(name, None)
    check_pair(tokenizer, load_tokenizer(checkpoint), config, load_config(checkpoint))
    return checkpoint


def said_of(student: Any) -> str:
    """The shape of a network, for readers."""
    config = student.config.get_text_config(decoder=True)
    known = getattr(student.config, SIZE, None)
    head = "" if known is None else f", a head of {known:,} tokens"
    layers = counted(config.num_hidden_layers, "layer")
    return f"{layers} of width {config.hidden_size}, {parameters_of(student):,} parameters{head}"


def parameters_of(student: Any) -> int:
    return sum(parameter.numel() for parameter in student.parameters())


@dataclass(frozen=True)
class HeadStart:
    """A fresh head. steps: number of drafts; EAGLE-3 drafts each from its own states, Medusa with a head each.

    intermediate: MLP width of EAGLE-3, None for the target's; vocabulary: number of known tokens.
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
        refuse_vocabulary(self.vocabulary, config)

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        ids = None
        if self.vocabulary is not None and self.vocabulary < given.teacher.width:
            ids = most_frequent(given.cache.counts(), self.vocabulary, given.special)
        options = HeadOptions(ids, self.steps, given.verifier, self.intermediate, recipe.seed)
        return head_begun(self.kind, f"a fresh {WORDS[self.kind]} head", given, recipe, options)


@dataclass(frozen=True)
class MtpStart:
    """An MTP module trained for `steps` drafts.

    begin: the checkpoint to start from, possibly the target itself; None for a fresh one. target and
    revision: the target's name, and its revision if given.
    """

    target: str
    steps: int = 4
    begin: str | None = None
    revision: str | None = None

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "mtp", "steps": self.steps, "begin": self.begin}

    def check(self, config: Any, tokenizer: Any) -> None:
        self.found()

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        options = HeadOptions(None, self.steps, given.verifier, seed=recipe.seed, begin=self.found())
        words = "a fresh MTP module" if self.begin is None else f"the MTP module of {self.begin}"
        return head_begun("mtp", words, given, recipe, options)

    def found(self) -> Head | None:
        """The MTP module to start from. UnusableModelError if it is not a module of the target."""
        if self.begin is None:
            return None
        target = names.resolve(self.target, self.revision)
        checkpoint = target if self.begin == self.target else names.resolve(self.begin)
        head = files.find(checkpoint, target)
        if head is None or head.kind != "mtp":
            raise UnusableModelError(
                f"--from {self.begin}: it has no MTP module for {self.target}: name the target itself, if it has "
                "one, or a module that was trained for it; without --from a fresh one is made"
            )
        return head


def head_begun(kind: HeadKind, words: str, given: Teaching, recipe: Recipe, options: HeadOptions) -> Begun:
    """A head with its lesson. A continued run builds the same by its seed; the checkpoint has the weights."""
    student, layout = beginning(kind, given.network, options)
    known = getattr(student.config, SIZE, None)
    vocabulary = "" if known is None else f", a vocabulary of {known:,} tokens"
    read = ", ".join("the last hidden state" if tap == "z" else f"h[{tap}]" for tap in student.head.taps)
    return Begun(
        student=student.to(given.teacher.device),
        words=words,
        shape=f"{parameters_of(student):,} parameters{vocabulary}, reads {read}",
        save=lambda trained, place: save_head(trained, layout, place, given.dtype),
        lesson=HeadLesson(given.teacher, student.head.taps, given.cache, recipe, options.steps),
        card={"what": f"head ({WORDS[kind]})", "alpha": ALPHA},
        command="run",
    )


@dataclass(frozen=True)
class PardStart:
    """A draft trained to predict through masks, `steps` − 1 of them."""

    start: Start
    steps: int = 4

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "pard", "steps": self.steps, **asdict(self.start)}

    def check(self, config: Any, tokenizer: Any) -> None:
        self.start.check(config, tokenizer)

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        """Build the masked draft. UnusableModelError for layers with sliding windows, whose masks would see others."""
        network = begun(self.start, given, recipe, folder)
        if any(windows_of(network.config.get_text_config(decoder=True)).values()):
            raise UnusableModelError(
                f"{self.start.begin}: its layers use sliding-window attention: use a draft without"
            )
        if getattr(network.config, MASK, None) is None:
            setattr(network.config, MASK, unused(given.cache.counts(), given.special, network.config.vocab_size))
        mask = int(getattr(network.config, MASK))
        return Begun(
            student=Masked(network, mask),
            words=f"{self.start.begin}, through masks",
            shape=f"{said_of(network)}, its mask is the token {mask}",
            save=lambda student, place: save_network(student.network, place, given.tokenizer, given.dtype),
            lesson=HeadLesson(given.teacher, (), given.cache, recipe, self.steps),
            card={"what": "small language model (PARD)", "alpha": ALPHA},
            command="run",
        )


def unused(counts: Tensor, special: Collection[int], size: int) -> int:
    """The mask token: among the least frequent tokens of the text [V], the last non-special one below `size`."""
    numbers = [number for number in range(min(size, len(counts))) if number not in special]
    return min(numbers, key=lambda number: (int(counts[number]), -number))


Beginning = Start | HeadStart | MtpStart | PardStart
