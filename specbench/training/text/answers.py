"""The target's own answers to prompts, as examples: what it says is what a draft has to guess.

Knows prompts, turns and the decoder as a function; must not know engines. (Zhou et al. 2023, DistillSpec, arXiv
2310.08461: drafts learn most from such answers.)
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specbench.chat import Chat
from specbench.data.prompts import Prompt, PromptSet
from specbench.data.turns import next_turn
from specbench.metrics import Trace
from specbench.seeds import seed_from
from specbench.training.text.cache_writer import CacheWriter
from specbench.training.text.data_options import Source, Sources
from specbench.training.text.progress import Progress, Watch
from specbench.training.text.shards import Example

Decode = Callable[[Sequence[Sequence[int]], Sequence[int]], Sequence[Trace]]  # prompts as token ids, a seed for each


@dataclass(frozen=True)
class Asked:
    """A prompt to be answered: of which source it is, and the how manieth of its samples."""

    source: Source
    prompts: PromptSet
    prompt: Prompt
    sample: int

    def seed(self, seed: int) -> int:
        """The seed of its decode, whatever is decoded beside it."""
        return seed_from(seed, self.source.label, self.prompt.draw, self.sample, "answer")

    def example(self, answer: Sequence[int]) -> Example:
        """The prompt and what the target answered, the token that ends it included."""
        name, category = self.source.known_as(self.prompt), self.source.category(self.prompt)
        return Example([*self.prompt.ids, *answer], len(self.prompt.ids), category, name)

    def later(self, answer: Sequence[int], chat: Chat | None) -> "Asked | None":
        """The next turn of its conversation, on this answer; None where there is none."""
        prompt = next_turn(self.prompt, answer, self.prompts, chat) if chat else None
        return replace(self, prompt=prompt) if prompt else None


def calls(sources: Sources, samples: int, together: int) -> list[list[Asked]]:
    """What is decoded in one call: prompts of about one length, the longest first, so that too much shows at once."""
    asked = [
        Asked(source, source.prompts, prompt, sample)
        for source, prompt in sources.asked
        if source.prompts
        for sample in range(samples)
    ]
    asked.sort(key=lambda one: -len(one.prompt.ids))  # stable: else as in the data
    return [asked[start : start + together] for start in range(0, len(asked), together)]


def write_answers(
    decode: Decode, sources: Sources, chat: Chat | None, writer: CacheWriter, watch: Watch
) -> Counter[str]:
    """Write the answers to all prompts that are not written yet; returns what was left out, by reason.

    decode: the target's own decoding, of as many prompts as it is given, with a seed for each.
    """
    origin, began, tokens = writer.manifest.origin, time.perf_counter(), 0
    every = calls(sources, origin.samples, origin.together)
    done, total = sum(map(len, every[: writer.parts])), sum(map(len, every))
    watch(Progress("prompts", done, total, 0, 0.0))
    for some in every[writer.parts :]:
        examples = answered(decode, some, origin.seed, chat)
        writer.append(examples)
        writer.flush()
        done, tokens = done + len(some), tokens + sum(len(one.ids) - one.start for one in examples)
        watch(Progress("prompts", done, total, tokens, time.perf_counter() - began))
    return sources.left_out


def answered(decode: Decode, asked: Sequence[Asked], seed: int, chat: Chat | None) -> list[Example]:
    """The answers to some prompts, and to what follows on them in their conversations."""
    examples: list[Example] = []
    while asked:
        traces = decode([one.prompt.ids for one in asked], [one.seed(seed) for one in asked])
        answers = [(one, trace.tokens) for one, trace in zip(asked, traces, strict=True)]
        examples += [one.example(answer) for one, answer in answers]
        asked = [after for one, answer in answers if (after := one.later(answer, chat))]
    return examples
