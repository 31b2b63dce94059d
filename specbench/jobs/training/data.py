"""Training data: a loaded target and a cache of its answers, or of text, as tokens."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.backends.base import Backend, networks_of
from specbench.data.loading import load_prompts
from specbench.errors import UnusableModelError
from specbench.files import PACKAGE, read_whole
from specbench.jobs.output import say
from specbench.jobs.progress import load
from specbench.measure import grid
from specbench.measure.plan import chat_settings, complete_backend
from specbench.models.checkpoints import names
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.reduced import coverage, special_tokens
from specbench.models.network.sampling import Sampling, known_tokens
from specbench.spec import BASELINE, RunSpec
from specbench.training.cache import Example, Manifest, Origin, TokenCache, cached
from specbench.training.data import Sources, sources
from specbench.training.learner import batch_of
from specbench.training.recipe import Recipe
from specbench.training.teacher import FOLDER, Teacher, with_states
from specbench.training.text import (
    Progress,
    answer_parts,
    answers_origin,
    described,
    text_parts,
    weights_digest,
)
from specbench.wording import counted

CACHE, PURPOSE = "tokens", "training a draft"
HELD_OUT = ("held-out.jsonl", "held-out-2.jsonl")  # chats and plain prompts go into separate files
LICENCE = re.compile(r"^license:\s*([\w.+-]{1,60})\s*$", re.MULTILINE)
CARDS = 1 << 20  # bytes of a model card
AGAIN = 30.0  # seconds between two progress lines
SHOWN = 16  # held-out sequences for measuring the coverage of a vocabulary


@dataclass(frozen=True)
class Source:
    """Data options.

    data: the values of --data; generate: whether the target answers them, `samples_per_prompt` times each.
    answer_temperature: None for the recipe's; cache: its folder, None for one inside the draft's. keep_states: whether
    to cache the target's last hidden states, None to do so if the text is learned more than once.
    """

    data: tuple[str, ...]
    generate: bool = True
    samples_per_prompt: int = 1
    answer_temperature: float | None = None
    cache: Path | None = None
    keep_states: bool | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The values that must match to continue a training: all but the cache folder."""
        return {**asdict(self), "data": list(self.data), "cache": None}


@dataclass(frozen=True)
class Teaching:
    """A loaded target as teacher, and its training data.

    special: the ids that every draft must have; data: a description of the training data; licence: the
    target's, if known. held_out: prompts excluded from training, as rows by file name; empty for text.
    """

    target: str
    source: str
    data: Sequence[str]
    licence: str | None
    teacher: Teacher
    tokenizer: Any
    special: frozenset[int]
    cache: TokenCache
    dtype: torch.dtype
    held_out: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    verifier: str = ""  # folder or repository of the target

    @property
    def network(self) -> Any:
        return self.teacher.network

    def coverage(self, student: Any, recipe: Recipe) -> float | None:
        """The target's probability mass on the tokens of a draft's head; None for a full head."""
        known = known_tokens(student, self.teacher.width)
        if known is None:
            return None
        some = [self.cache.held_out[number] for number in range(min(SHOWN, len(self.cache.held_out)))]
        batch = batch_of(some, recipe.length).to(self.teacher.device)
        return coverage(self.teacher.rows(batch, Sampling(recipe.temperature)), known.tolist())


def teaching(
    settings: Mapping[str, Any],
    source: Source,
    recipe: Recipe,
    folder: Path,
    err: Console,
    check: Callable[[Any, Any], None] = lambda config, tokenizer: None,
    again: bool = False,
) -> Teaching:
    """Load the target and read or create the training data. Raises UsageError or UnusableModelError.

    check: called with the target's configuration and tokenizer before slow steps. again: whether the text is
    learned more than once, regardless of the recipe.
    """
    (spec,) = grid.cells({"method": BASELINE, "dataset": source.data[0], **settings})
    backend = complete_backend([spec])
    tokenizer = networks_of(backend, PURPOSE).tokenizer
    check(load_config(names.resolve(spec.target, spec.target_revision)), tokenizer)
    room, chosen = backend.context - spec.max_new_tokens - 1, ("limit", "seed", "column", "template")
    options = {name: getattr(spec, name) for name in chosen}
    prompts = partial(load_prompts, longest=room, chat=chat_settings(spec, backend), **options)
    found = sources(source.data, prompts, backend.encode, answered=source.generate)
    load(backend, spec, max(found.longest, 1), err)
    cache = tokens(backend, spec, source, found, source.cache or folder / CACHE, recipe, err)
    given = taught(backend, spec, source, cache, recipe, again)
    if source.generate:
        answered = {cache.held_out[number].prompt for number in range(len(cache.held_out))}
        given = replace(given, held_out=dict(zip(HELD_OUT, found.rows(answered).values(), strict=False)))
    left_out = ", ".join(f"{count} {reason}" for reason, count in cache.manifest.left_out.items() if count)
    counts = f"{counted(len(cache.train), 'sequence')} to learn, {len(cache.held_out)} held out"
    say(err, [f"{counts}; not used: {left_out}" if left_out else counts])
    if (states := given.teacher.states) is not None:
        size = f"up to {states.bytes / 1e9:.2g} GB"
        say(err, [f"the target reads every text once: its last states are kept in {states.place}, {size}"])
    return given


def tokens(
    backend: Backend, spec: RunSpec, source: Source, found: Sources, folder: Path, recipe: Recipe, err: Console
) -> TokenCache:
    """The token cache, filled if incomplete."""
    networks = networks_of(backend, PURPOSE)
    answering = spec if source.answer_temperature is None else spec.with_(temperature=source.answer_temperature)
    target = networks.network("target")
    about = described(found, backend.describe(), target, networks.tokenizer, networks.width)
    watch = Reported(err, "answered" if source.generate else "read")
    if not source.generate:
        origin = Origin(kind="text", length=recipe.length, **about)
        return cached(folder, origin, partial(text_parts, found, backend.encode, watch), lambda: found.left_out)

    def parts(manifest: Manifest) -> Iterator[Sequence[Example]]:
        decode = backend.prepare(answering, found.longest)
        return answer_parts(decode, found, backend.chat, watch, manifest)

    origin = answers_origin(about, answering, source.samples_per_prompt)
    return cached(folder, origin, parts, lambda: found.left_out, size=0)


class Reported:
    """Print the progress of the text every half minute and at its end."""

    def __init__(self, console: Console, done: str) -> None:
        self.console, self.done, self.due = console, done, time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() < self.due and progress.done != progress.total:
            return
        self.due = time.monotonic() + AGAIN
        what = progress.what if (progress.total or progress.done) != 1 else progress.what.removesuffix("s")
        total = "" if progress.total is None else f" of {progress.total}"
        rate = f", {progress.rate:.0f} tokens/s" if progress.tokens else ""
        say(self.console, [f"{progress.done}{total} {what} {self.done}{rate}"])


def teacher_of(network: Any, source: Source, cache: TokenCache, recipe: Recipe, again: bool) -> Teacher:
    """The target as a teacher, with cached states if requested or if that saves time."""
    again = again or recipe.tokens > cache.train.learned(recipe.prompts).sum()
    saves = again and recipe.samples != "student"
    if not (saves if source.keep_states is None else source.keep_states):
        return Teacher(network)
    known = f"{cache.manifest.sha256} {weights_digest(network)} {network.dtype} {recipe.prompts}"
    key = hashlib.sha256(known.encode()).hexdigest()[:12]
    return with_states(network, cache.path / FOLDER, cache.every.learned(recipe.prompts), key, recipe.tokens)


def taught(backend: Backend, spec: RunSpec, source: Source, cache: TokenCache, recipe: Recipe, again: bool) -> Teaching:
    """The facts a trainer needs about a loaded target."""
    networks, about = networks_of(backend, PURPOSE), backend.describe()
    network = networks.network("target")
    if not any(parameter.is_floating_point() for parameter in network.parameters()):
        raise UnusableModelError(f"{spec.target}: its weights are packed: a teacher needs plain ones")
    special = special_tokens(networks.tokenizer, networks.eos(spec.with_(ignore_eos=False)))
    what = "the target's own answers to" if source.generate else "the text of"
    return Teaching(
        target=spec.target,
        source=", ".join(filter(None, (about["target_source"], about["target_commit"]))),
        data=[f"{what} {name}" for name in cache.manifest.origin.data],
        licence=licence_of(about["target_source"]),
        teacher=teacher_of(network, source, cache, recipe, again),
        tokenizer=networks.tokenizer,
        special=frozenset(special),
        cache=cache,
        dtype=next(network.parameters()).dtype,
        verifier=about["target_source"],
    )


def licence_of(source: str) -> str | None:
    """The licence in the model card of a checkpoint's folder; None if missing."""
    place = PACKAGE.parent / source  # a shipped one is named relative to the package
    for folder in (place, place.parent):
        try:
            found = LICENCE.search(read_whole(folder / "README.md", CARDS).decode("utf-8", "replace"))
        except OSError:
            continue
        if found:
            return found[1]
    return None
