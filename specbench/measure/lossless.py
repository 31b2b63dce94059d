"""Check outputs up to rounding: method against baseline, ours against transformers, and rescoring."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig

from specbench.backends.base import Scores
from specbench.backends.engines import arms
from specbench.decoding.method_files import read_method
from specbench.metrics import divergence
from specbench.models.execution import machine
from specbench.models.network.attention import NAME as GROUPED
from specbench.models.scale import growth
from specbench.results.cells import Comparison, Losslessness
from specbench.results.samples import Sample
from specbench.results.statistics import Tally
from specbench.spec import RunSpec, methods_of

Outputs = tuple[Sequence[int], Sequence[int], Sequence[int]]  # prompt ids, baseline tokens, method tokens
Prompts = Mapping[tuple[str, int], Sequence[int]]
# (prompt, output) → [tokens, V] float64 logits, each before its token
Rescore = Callable[[Sequence[int], Sequence[int]], Tensor]
POSITIONS = 400  # enough positions to estimate the largest difference of logits


@dataclass(frozen=True)
class Text:
    """The output of a backend after a prompt, both as token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Fork:
    """Where an output first differs from the baseline's `text`: the other token there, None if one of them ends.

    block: the tokens of a pass that verified it.
    """

    text: Text
    at: int
    token: int | None
    block: int


def forks_of(outputs: Sequence[Outputs], block: int) -> list[Fork]:
    """The forks of the outputs that differ from the baseline's."""
    found = []
    for prompt, base, other in outputs:
        if (at := divergence(base, other)) is not None:
            token = other[at] if at < min(len(base), len(other)) else None
            found.append(Fork(Text(tuple(prompt), tuple(base)), at, token, block))
    return found


@dataclass
class Rescored:
    """Scores along the baseline's texts, each computed once for all cells whose forks are expected.

    They end at the last fork of a text. Whole texts are scored only for a cell that these do not explain: more
    positions can only raise the noise, so the verdict is that of whole texts.
    """

    scores: Scores
    watch: Callable[[int, int], None] = lambda done, texts: None  # called after every text
    _forks: dict[Text, dict[Fork, None]] = field(default_factory=dict, init=False, repr=False)
    _found: dict[tuple[Fork, bool], tuple[float, float]] = field(default_factory=dict, init=False, repr=False)

    def expect(self, forks: Sequence[Fork]) -> None:
        for fork in forks:
            self._forks.setdefault(fork.text, {})[fork] = None

    def gap_and_noise(self, forks: Sequence[Fork], whole: bool = False) -> tuple[float, float]:
        """The largest `shortfall` at the forks, and the largest difference of any logit between scoring one token
        at a time and `block` at a time."""
        self.expect(forks)
        gaps, noises = zip(*(self._of(fork, whole) for fork in forks), strict=True)
        return max(gaps), max(noises)

    def _of(self, fork: Fork, whole: bool) -> tuple[float, float]:
        if (fork, whole) not in self._found:
            self._score(fork.text, whole)
            self.watch(len({known.text for known, _ in self._found}), len(self._forks))
        return self._found[fork, whole]

    def _score(self, text: Text, whole: bool) -> None:
        forks, noises = self._forks[text], {}
        end = len(text.tokens) if whole else max(fork.at for fork in forks) + 1
        one = self._along(text, end, 1)
        for block in {fork.block for fork in forks}:
            passes = -(-end // block)  # whole ones, as along the whole text
            noises[block] = float((one - self._along(text, passes * block, block)[: len(one)]).abs().max())
        for fork in forks:
            gap = math.inf if fork.token is None else shortfall(one[fork.at], text.tokens[fork.at], fork.token)
            self._found[fork, whole] = gap, noises[fork.block]

    def _along(self, text: Text, end: int, block: int) -> Tensor:
        return self.scores([*text.prompt, *text.tokens[:end]], len(text.prompt), block).double()


def compare_outputs(outputs: Sequence[Outputs], rescored: Rescored | None, block: int) -> Losslessness:
    """Compare greedy outputs with the baseline's; scores are computed only where they differ.

    Without scores a divergence cannot be explained: the verdict is `not compared`, with the counts.
    """
    forks = forks_of(outputs, block)
    same = len(outputs) - len(forks)
    if not forks:
        return Losslessness("identical", same, len(outputs))
    first = min(fork.at for fork in forks)
    if rescored is None:
        return Losslessness("not compared", same, len(outputs), first)
    gap, noise = rescored.gap_and_noise(forks)
    if machine.agreed(2 * noise < gap < math.inf):
        gap, noise = rescored.gap_and_noise(forks, whole=True)
    verdict: Comparison = "numeric" if gap <= 2 * noise else "MISMATCH"
    return Losslessness(verdict, same, len(outputs), first, gap, noise)


def shortfall(scores: Tensor, *tokens: int) -> float:
    """How far the worst token is below the best score; the top-2 gap if the tokens are the two best.

    (If one output ends and the other continues, rounding cannot be the cause, so the gap is infinite.)
    """
    return float(scores.max() - scores[list(tokens)].min())


def greedy_outputs(spec: RunSpec, prompts: Prompts, samples: Sequence[Sample]) -> tuple[list[Outputs], int] | None:
    """The outputs of a cell that is compared, and the tokens of its widest pass. Sampled output differs by chance,
    synthetic acceptance by design: None.

    prompts: their tokens, by prompt id and turn number.
    """
    if spec.temperature > 0 or spec.acceptance is not None:
        return None
    first = [s for s in samples if s.repeat == 0]
    outputs: list[Outputs] = [(prompts[s.prompt, s.conversation[0]], s.baseline.tokens, s.method.tokens) for s in first]
    widest = max((r.width for s in samples for r in s.method.rounds), default=0)  # all nodes of a tree are one pass
    return outputs, max(widest, spec.k) + 1


def losslessness_of(
    spec: RunSpec, prompts: Prompts, samples: Sequence[Sample], rescored: Rescored | None
) -> Losslessness:
    """The losslessness of a cell; see `greedy_outputs`."""
    if (found := greedy_outputs(spec, prompts, samples)) is None:
        lossless = all(read_method(m)["lossless"] for m in methods_of(spec)) and not arms.lossy(spec)
        lossy = spec.acceptance is None and not lossless
        return Losslessness("lossy" if lossy else "not compared")
    outputs, block = found
    return compare_outputs(outputs, rescored, block)


@dataclass(frozen=True)
class PlainPass:
    """One forward pass of a network over a whole sequence."""

    network: Any
    device: torch.device

    @torch.no_grad()
    def __call__(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor([[*prompt, *tokens]], device=self.device)
        with own_attention(self.network):
            logits: Tensor = self.network(input_ids=ids, use_cache=False, logits_to_keep=len(tokens) + 1).logits
        known = growth.vocabulary(self.network.config)  # the padded ids of a scale model are not tokens
        return logits[0, :-1, :known].double()


@contextmanager
def own_attention(network: Any) -> Iterator[None]:
    """Use the attention that transformers would choose instead of ours."""
    before = network.config.get_text_config(decoder=True)._attn_implementation
    if before != GROUPED:
        yield
        return
    network.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        network.set_attn_implementation(before)


def tallies(
    texts: Sequence[Text], score: Rescore, temperature: float, rival: Rescore | None = None
) -> Iterator[tuple[Tally, Tally | None]]:
    """The surprise and the leaning to a rival of every text, for sampling at a temperature above 0.

    The rival, scored like the judge, is the model that text of a faulty method may lean to: the draft.
    """
    for text in texts:
        logs = (score(text.prompt, text.tokens) / temperature).log_softmax(-1)
        p, ids = logs.exp(), torch.tensor(list(text.tokens), device=logs.device).unsqueeze(-1)
        leant = None if rival is None else leaning(p, rival(text.prompt, text.tokens) / temperature)
        yield tally(p, -logs, ids), None if leant is None else tally(p, leant, ids)


def leaning(p: Tensor, rival: Tensor) -> Tensor:
    """[n, V] q ÷ (p + q): the chance that a token came from the rival, had both drawn equally often (Bayes).

    Among functions of a token between 0 and 1 it is the most sensitive to a small share of text drawn from q
    instead of p. The rival never draws tokens it does not know.
    """
    q = rival[..., : p.shape[-1]].softmax(-1)
    q = F.pad(q, (0, p.shape[-1] - q.shape[-1]))
    return (q / (p + q)).nan_to_num(0.0)


def tally(p: Tensor, f: Tensor, ids: Tensor) -> Tally:
    """Sum f [n, V] over ids [n, 1], and its mean and variance under p [n, V]; f may be infinite where p is 0."""
    mean = (p * f).nan_to_num(0.0).sum(-1)
    variance = (p * f**2).nan_to_num(0.0).sum(-1) - mean**2
    return Tally(len(ids), float(f.gather(-1, ids).sum()), float(mean.sum()), float(variance.clamp_min(0).sum()))


def shortfalls(text: Text, score: Rescore) -> Tensor:
    """[n] how far every token of a text is below the best score at its position; 0 for the best."""
    scores = score(text.prompt, text.tokens)
    tokens = torch.tensor(list(text.tokens), device=scores.device)
    return scores.max(-1).values - scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def near_ties(texts: Sequence[Text], score: Rescore, limit: float) -> int:
    """The number of positions where the two best scores are within the limit."""
    gaps = (score(text.prompt, text.tokens).topk(2).values.diff().neg() for text in texts if text.tokens)
    return sum(int((gap <= limit).sum()) for gap in gaps)


@torch.no_grad()
def generated(network: Any, prompt: Sequence[int], new: int, eos: Sequence[int], device: torch.device) -> Text:
    """The greedy output of transformers' `generate` for a prompt, up to `new` tokens."""
    ids = torch.tensor([list(prompt)], device=device)
    with own_attention(network), plain_generation(network, eos):
        found = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new)
    return Text(tuple(prompt), tuple(found[0, len(prompt) :].tolist()))


@contextmanager
def plain_generation(network: Any, eos: Sequence[int]) -> Iterator[None]:
    """Use plain greedy search instead of the checkpoint's generation settings."""
    before = network.generation_config
    ends = list(eos) or None
    plain: Any = GenerationConfig  # untyped
    network.generation_config = plain(do_sample=False, eos_token_id=ends, pad_token_id=(ends or [0])[0])
    try:
        yield
    finally:
        network.generation_config = before


@dataclass(frozen=True)
class Floor:
    """The largest difference of any logit between computations that differ only in rounding."""

    noise: float
    positions: int

    @property
    def limit(self) -> float:
        """The largest gap that rounding can reverse: each of the two scores is off by up to the noise."""
        return 2 * self.noise


def noise_floor(scores: Scores, score: Rescore, texts: Sequence[Text], block: int) -> Floor:
    """Compare scores along known text: token by token and `block` at a time with our cache, and all at once without."""
    noise, positions = 0.0, 0
    for text in texts:
        if positions >= POSITIONS or not text.tokens:
            continue
        ids, start = [*text.prompt, *text.tokens], len(text.prompt)
        whole = score(text.prompt, text.tokens)
        one, many = (scores(ids, start, width)[: len(whole)].double() for width in (1, block))
        noise = max(noise, *(float(apart.abs().max()) for apart in (one - many, one - whole, many - whole)))
        positions += len(text.tokens)
    return Floor(noise, positions)


@dataclass(frozen=True)
class AsReference:
    """Greedy output against `generate`: the number of equal texts, and the widest gap at any first difference.

    gap: how far the worse of the two tokens is below the best score there; None if all texts are equal.
    """

    identical: int
    compared: int
    gap: float | None = None


def agreement(texts: Sequence[Text], references: Sequence[Text], score: Rescore) -> AsReference:
    """Compare texts with references of the same prompts, in the same order."""
    pairs = list(zip(texts, references, strict=True))
    forks = [(a, b, at) for a, b in pairs if (at := divergence(a.tokens, b.tokens)) is not None]
    return AsReference(len(pairs) - len(forks), len(pairs), max((gap(*fork, score) for fork in forks), default=None))


def gap(text: Text, reference: Text, at: int, score: Rescore) -> float:
    """The gap at a first difference; infinite if one text ends and the other continues, which rounding cannot cause."""
    if at >= min(len(text.tokens), len(reference.tokens)):
        return float("inf")
    worst = (shortfalls(Text(one.prompt, one.tokens[: at + 1]), score)[-1] for one in (text, reference))
    return max(map(float, worst))


def weights_sha256(network: Any) -> str:
    """SHA-256 over the name, type, shape and bytes of every weight and buffer, in the order of their names.

    Independent of file format and sharding; other dtypes or quantisation give different digests.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
