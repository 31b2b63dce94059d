"""Training text of a draft: windows of text, or the target's own answers to prompts, part by part for the cache.

Drafts learn most from answers of their target (Zhou et al. 2023, DistillSpec, arXiv 2310.08461).
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor

from specbench.chat import Chat
from specbench.data.longtext import Encode
from specbench.data.prompts import Prompt, PromptSet, next_turn
from specbench.errors import UsageError
from specbench.metrics import Trace, ratio, seed_from
from specbench.models.checkpoints.check import PROBES
from specbench.settings import group
from specbench.spec import RunSpec
from specbench.training.cache import Example, Manifest, Origin
from specbench.training.data import Source, Sources

SHORTEST = 2  # tokens of a window: one to start from, one to learn
VALUES = 4096  # sampled values per weight
ROWS = 8  # answers per row and call, so that few rows are idle at its end

Decode = Callable[[Sequence[Sequence[int]], Sequence[int]], Sequence[Trace]]  # prompts as token ids, a seed for each


@dataclass(frozen=True)
class Progress:
    """what: prompts or documents; the number done, and the total (None if unknown).

    tokens and seconds: those of this process, which may have continued another one's work.
    """

    what: str
    done: int
    total: int | None
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second; NaN before the first token."""
        return ratio(self.tokens, self.seconds)


Watch = Callable[[Progress], None]


# --- texts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Document:
    """A text whose windows are held out together or not at all; it is tokenized on demand."""

    name: str
    category: str
    tokens: Callable[[], Sequence[int]]


def documents(sources: Sources, encode: Encode) -> Iterator[Document]:
    for source in sources.each:
        if source.prompts:
            for prompt in source.prompts.prompts:
                tokens = partial(row_tokens, source.prompts, prompt, encode)
                yield Document(source.known_as(prompt), source.category(prompt), tokens)
        if source.files:
            for name, text in source.files.parts():
                yield Document(f"{source.label}/{name}", source.title, partial(encode, text))


def row_tokens(prompts: PromptSet, prompt: Prompt, encode: Encode) -> Sequence[int]:
    """A row of a data set: its prompt, and its answer if it has one."""
    if prompts.applied is None:
        return encode(joined(prompt.text, prompt.reference))
    ids, opening = (encode(prompt.reference) if prompt.reference else []), encode("")
    return [*prompt.ids, *(ids[len(opening) :] if ids[: len(opening)] == opening else ids)]


def joined(prompt: str, answer: str) -> str:
    """A prompt and its answer as one text, with a space between two words."""
    space = " " if answer and not prompt[-1:].isspace() and not answer[0].isspace() else ""
    return f"{prompt}{space}{answer}"


def windows(document: Document, length: int) -> list[Example]:
    """The tokens of a document in windows of `length` and a rest; all but a window's first are learned."""
    ids = document.tokens()
    parts = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [Example(part, 1, document.category, document.name) for part in parts if len(part) >= SHORTEST]


def text_parts(sources: Sources, encode: Encode, watch: Watch, manifest: Manifest) -> Iterator[list[Example]]:
    """The windows of every document missing in a cache. UsageError if there is no text at all."""
    began, tokens, rows = time.perf_counter(), 0, manifest.rows
    for number, document in enumerate(islice(documents(sources, encode), manifest.parts, None), manifest.parts + 1):
        examples = windows(document, manifest.origin.length)
        yield examples
        rows, tokens = rows + len(examples), tokens + sum(len(one.ids) for one in examples)
        watch(Progress("documents", number, None, tokens, time.perf_counter() - began))
    if not rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sources.left_out.items())
        raise UsageError(
            f"there is no text to learn from in {', '.join(sources.names)} ({reasons or 'nothing but white space'}): "
            "give data with text"
        )


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A prompt to be answered, with its source, and the number of its sample."""

    source: Source
    prompts: PromptSet
    prompt: Prompt
    sample: int

    def seed(self, seed: int) -> int:
        """The seed of its decode, independent of the rest of the batch."""
        return seed_from(seed, self.source.label, self.prompt.draw, self.sample, "answer")

    def example(self, answer: Sequence[int]) -> Example:
        """The prompt and the target's answer, its end token included."""
        name, category = self.source.known_as(self.prompt), self.source.category(self.prompt)
        return Example([*self.prompt.ids, *answer], len(self.prompt.ids), category, name)

    def later(self, answer: Sequence[int], chat: Chat | None) -> "Question | None":
        """The next turn of its conversation, after this answer; None if it was the last."""
        prompt = next_turn(self.prompt, answer, self.prompts, chat) if chat else None
        return replace(self, prompt=prompt) if prompt else None


def calls(sources: Sources, samples: int, together: int) -> list[list[Question]]:
    """The prompts of each call: of similar length, the longest first, so that memory runs out at once if at all."""
    questions = [Question(*one, sample) for one in sources.questions for sample in range(samples)]
    questions.sort(key=lambda one: -len(one.prompt.ids))  # stable: ties keep the order of the data
    return [questions[start : start + together] for start in range(0, len(questions), together)]


def answer_parts(
    decode: Decode, sources: Sources, chat: Chat | None, watch: Watch, manifest: Manifest
) -> Iterator[list[Example]]:
    """The answers of every call missing in a cache, by the target's own decoding."""
    origin, began, tokens = manifest.origin, time.perf_counter(), 0
    every = calls(sources, origin.samples, origin.together)
    done, total = sum(map(len, every[: manifest.parts])), sum(map(len, every))
    watch(Progress("prompts", done, total, 0, 0.0))
    for some in every[manifest.parts :]:
        examples = answered(decode, some, origin.seed, chat)
        yield examples
        done, tokens = done + len(some), tokens + sum(len(one.ids) - one.start for one in examples)
        watch(Progress("prompts", done, total, tokens, time.perf_counter() - began))


def answered(decode: Decode, questions: Sequence[Question], seed: int, chat: Chat | None) -> list[Example]:
    """The answers to some prompts, and to later turns of their conversations."""
    examples: list[Example] = []
    while questions:
        traces = decode([one.prompt.ids for one in questions], [one.seed(seed) for one in questions])
        answers = [(one, trace.tokens) for one, trace in zip(questions, traces, strict=True)]
        examples += [one.example(answer) for one, answer in answers]
        questions = [after for one, answer in answers if (after := one.later(answer, chat))]
    return examples


# --- origins ----------------------------------------------------------------------------------------------------------


def answers_origin(about: Mapping[str, Any], spec: RunSpec, samples: int) -> Origin:
    """The origin of answers of a spec; greedy ones have no seed, and UsageError for several samples."""
    if samples > 1 and not spec.temperature:
        raise UsageError(
            f"{samples} samples per prompt are all the same at temperature 0: give a --temperature, or use one"
        )
    names = [*(setting.name for setting in group("sampling", RunSpec)), "max_new_tokens", "ignore_eos"]
    decoded: dict[str, Any] = {name: getattr(spec, name) for name in names}
    decoded |= {"samples": samples, "together": max(128, ROWS * spec.batch)}
    decoded["seed"] = spec.seed if spec.temperature else 0
    return Origin(kind="answers", **decoded, **about)


def described(sources: Sources, target: Mapping[str, Any], network: Any, tokenizer: Any, width: int) -> dict[str, Any]:
    """The values of every origin. target: from `Backend.describe`; network: the target; width: of its head."""
    return {
        "target": target["target_source"],
        "revision": target["target_commit"],
        # weights in a folder may change
        "weights": f"{target['target_weights']}, {weights_digest(network)[:12]}",
        "dtype": target["dtype_resolved"],
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "chat_template_sha256": sources.template_sha256,
        "prompts_sha256": sources.sha256,
        "data": sources.names,
        "vocabulary": width,
    }


def weights_digest(network: Any) -> str:
    """A digest of a network's weights, from a few thousand values of each: training changes them all.

    It is the same in every type that has these values. Packed weights count by their names and shapes.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        if type(weight) is Tensor and weight.is_floating_point():
            some = weight.flatten()[:: max(weight.numel() // VALUES, 1)]
            digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def tokenizer_sha256(tokenizer: Any) -> str:
    """The digest of a transformers tokenizer: of its tokens, and of its splits of texts of many kinds."""
    known = [sorted(tokenizer.get_vocab().items()), [list(tokenizer(text).input_ids) for text in PROBES]]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()
