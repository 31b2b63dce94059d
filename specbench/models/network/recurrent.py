"""A Hugging Face decoder with a recurrent state as a `Model`: Mamba, linear attention, and hybrids with attention.

Rejected tokens are rolled back by a snapshot of the state; accepted ones are read again in the pass over the next
tokens (Wang et al. 2024, arXiv 2408.15237, §4, replay it in their kernel). So rejection costs wider passes.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from specbench.decoding.protocols import After, alike
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict
from specbench.errors import UnusableModelError, UsageError
from specbench.models.execution.compiled import Passes
from specbench.models.network.caches import OWN, Memory
from specbench.models.network.causal import TEXTS, Causal, scores_of
from specbench.models.network.learning import Learning
from specbench.models.network.retrieved import Retrieved
from specbench.models.network.sampling import Sampling, known_tokens, proper_rows
from specbench.wording import first_line

REPLAYED = 8  # accepted tokens in a pass with new ones; more of them are read by a separate pass, once for all
ONE_ROW = "decodes one sequence at a time, as its recurrent state has no padding: use --batch 1"
NO_KEYS = "keeps a recurrent state, from which no keys can be retrieved: use a method without Retrieval"
NO_TREES = "verifies chains only, as its recurrent state has no branches: use a method without trees"


class Recurrent:
    """A causal language model whose transformers cache is restored, not rolled back. Batches have one row.

    `width` is V, the width of the target's head. stepwise: tokens are read one by one, as
    passes over several lose the state before them (transformers' scan of Mamba begins at zero).
    """

    static: ClassVar[bool] = False

    def __init__(self, network: Any, sampling: Sampling, width: int, stepwise: bool = False) -> None:
        self.network, self.sampling, self.width, self.stepwise = network, sampling, width, stepwise
        self.config = network.config.get_text_config(decoder=True)
        inputs = inspect.signature(network.forward).parameters
        self.cached_as = "cache_params" if "cache_params" in inputs else "past_key_values"
        self.placed = "position_ids" in inputs  # otherwise there are none; Bamba computes wrong ones itself
        self.known = known_tokens(network, width)
        self.memory = SnapshotMemory(self.config)
        self.bigrams: Tensor | None = None

    def twin(self) -> "Recurrent":
        return Recurrent(self.network, self.sampling, self.width, self.stepwise)

    def learner(self, rate: float) -> tuple["Recurrent", Learning]:
        learning = Learning(self.network, self.sampling.temperature, rate)
        return Recurrent(learning.served, self.sampling, self.width, self.stepwise), learning

    def retrieved(self, budget: int, chunk: int, tail: int) -> Retrieved:
        raise UsageError(f"{self._name} {NO_KEYS}")

    @torch.no_grad()
    def start(self, context: Context) -> None:
        if context.rows != 1:
            raise UsageError(f"{self._name} {ONE_ROW}")
        self.memory = SnapshotMemory(self.config)
        if prompt := text_of(context)[:-1]:
            self._read(prompt, 1)

    def admit(self, context: Context, row: int) -> None:
        self.start(context)

    @torch.no_grad()
    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self._rows(context, self._after(text_of(context), self._chain(tree)))

    @torch.no_grad()
    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        logits = self._after(text_of(context), self._chain(tree))[:, -max(new, 1) :]
        return scores_of(logits, self.width) if raw else self._rows(context, logits)

    @torch.no_grad()
    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = self._after(text_of(context), [])[:, -1]
        ids, rows = [], []
        while True:
            rows.append(self._rows(context, logits))
            ids.append(rng.categorical(rows[-1], Stream.DRAFT))
            if (after is not None and after(ids[-1], logits)) or len(ids) == k:
                return torch.stack(ids, 1), torch.stack(rows, 1)
            if len(ids) == 1:
                self.memory.keep()
            logits = self._read(ids[-1].tolist(), 1)[:, -1]

    @torch.no_grad()
    def read(self, context: Context, tokens: int, block: int) -> Tensor:
        """[tokens, V'] logits along the sequence already in context.seq [1, L], `block` tokens at a time."""
        self.start(context)
        root = int(context.pos)
        text: list[int] = context.seq[0, root : root + tokens].tolist()
        return torch.cat([self._read(text[at : at + block], 0) for at in range(0, tokens, block)], 1)[0]

    @torch.no_grad()
    def successors(self) -> Tensor:
        if self.bigrams is None:
            texts = torch.split(torch.arange(self.width, device=self.network.device).unsqueeze(1), TEXTS)
            found = [self.network(input_ids=ids, use_cache=False).logits[:, -1, : self.width] for ids in texts]
            self.bigrams = torch.cat([logits.argmax(-1) for logits in found])
        return self.bigrams

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return  # the next call finds the accepted tokens in the sequence

    @property
    def _name(self) -> str:
        return type(self.network).__name__

    def _chain(self, tree: TokenTree) -> list[int]:
        if not tree.topology.is_chain:
            raise UsageError(f"{self._name} {NO_TREES}")
        ids: list[int] = tree.ids[0].tolist()
        return ids

    def _after(self, text: list[int], drafted: list[int]) -> Tensor:
        """[1, n + 1, V'] logits after the text and after every one of n drafted tokens."""
        if not self.memory.agrees(text):
            self.memory = SnapshotMemory(self.config)
        begun = len(self.memory.read)
        if drafted and len(text) - begun > 1 + REPLAYED:
            self._read(text[begun:-1], 1)
            begun = len(text) - 1
        if drafted:
            self.memory.keep()
        return self._read(text[begun:] + drafted, len(drafted) + 1)

    def _read(self, tokens: list[int], keep: int) -> Tensor:
        """[1, keep, V'] logits after the last `keep` of the tokens (0: of all), read in one pass or one by one."""
        if self.stepwise and self.memory.read:
            return torch.cat([self._pass([token], 1) for token in tokens], 1)[:, -keep:]
        return self._pass(tokens, keep)

    def _pass(self, tokens: list[int], keep: int) -> Tensor:
        ids = torch.tensor([tokens], device=self.network.device).clamp_max(self.config.vocab_size - 1)
        how: dict[str, Any] = {self.cached_as: self.memory.cache, "use_cache": True, "logits_to_keep": keep}
        if self.placed:
            how["position_ids"] = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0) + len(self.memory.read)
        logits: Tensor = self.network(input_ids=ids, **how).logits
        self.memory.read += tokens
        return logits

    def _rows(self, context: Context, logits: Tensor) -> Tensor:
        return proper_rows(context, self.sampling, logits, self.width, self.known)


def text_of(context: Context) -> list[int]:
    """The committed tokens of the only row, read by the host."""
    ids: list[int] = context.seq[0, : int(context.pos) + 1].tolist()
    return ids


# --- snapshots --------------------------------------------------------------------------------------------------------
# A recurrent state has no positions: tokens cannot be removed from it. So a copy of the cache
# from before the drafted tokens is kept, and the accepted ones are read once more.


class SnapshotMemory:
    """The tokens that a network has read, with its state after the last of them, and one snapshot at most.

    A snapshot is a state by layer. Recurrent states are copies; keys and values are never overwritten.
    """

    def __init__(self, config: Any) -> None:
        self.cache = DynamicCache(config=config)
        self.read: list[int] = []
        self.snapshot: list[dict[str, Any]] = []
        self.snapped = -1  # the number of tokens before the snapshot; negative if there is none

    def keep(self) -> None:
        if self.snapped != len(self.read):
            self.snapshot, self.snapped = [copied(vars(layer)) for layer in self.cache.layers], len(self.read)

    def agrees(self, text: Sequence[int]) -> bool:
        """Whether the tokens read are a prefix of a text, if necessary after restoring the
        snapshot; else they are useless."""
        common = alike(self.read, text[:-1])
        if common < len(self.read) and 0 <= self.snapped <= common:
            for layer, state in zip(self.cache.layers, self.snapshot, strict=True):
                vars(layer).update(copied(state))
            del self.read[self.snapped :]
        return len(self.read) <= common


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a layer: tensors changed in place, and the entries of its dictionaries, as copies."""
    return {
        name: {key: one.clone() if isinstance(one, Tensor) else one for key, one in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in state.items()
    }


# --- probe ------------------------------------------------------------------------------------------------------------
# Finds how tokens can be rolled back in a loaded network, so that its answers depend on the text alone.
# `checkpoints.description` judges configurations; short passes find what none declares (an ignored mask, hidden state).

COMMITTED, DRAFTED = 5, 3
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # total variation; 16-bit types below
LOOSE, TIMES, MOST = 0.1, 3.0, 0.5  # in 16 bits: always, as a multiple of the noise of plain passes, and at most


# position: overwriting their slots rolls rejected tokens back; snapshot: restoring a copy of the
# state does; single: the same, for a network that continues from a state by one token at a time only
Rollback = Literal["position", "snapshot", "single"]


def rollback_of(network: Any, recurrent: bool, width: int, name: str) -> Rollback:
    """The rollback method of a network; UnusableModelError if its rows after a rollback are not those of the text."""
    possible: tuple[Rollback, ...] = ("snapshot", "single") if recurrent else ("position",)
    change = math.inf
    for rollback in possible:
        change = distance(model_of(rollback, network, Sampling(), width), name)
        if allowed(change, network, width):
            return rollback
    raise UnusableModelError(
        f"{name}: its distributions change by {change:.2g} (total variation) when drafted tokens are taken "
        "back: it keeps state that neither positions nor its cache describe; specbench cannot measure it"
    )


def model_of(
    rollback: Rollback,
    network: Any,
    sampling: Sampling,
    width: int,
    fixed: bool = False,
    passes: Passes | None = None,
    memory: Memory = OWN,
) -> Causal | Recurrent:
    """A network as a model; `fixed`, `passes` and `memory` as in `Causal`."""
    if rollback == "position":
        return Causal(network, sampling, width, fixed, passes, memory)
    return Recurrent(network, sampling, width, stepwise=rollback == "single")


@torch.no_grad()
def distance(model: Causal | Recurrent, name: str) -> float:
    """Total variation between rows after a rollback and those of one plain pass over the whole sequence.

    UnusableModelError for a network that does not even run the passes.
    """
    text = torch.arange(2, 2 + COMMITTED + DRAFTED, device=model.network.device).unsqueeze(0) % model.config.vocab_size
    context = context_of(text[:, :COMMITTED], DRAFTED)
    plain = model.sampling(model.network(input_ids=text).logits[:, COMMITTED - 1 :], model.width)
    try:
        model.start(context)
        model.probs(context, TokenTree.chain(text.flip(1)[:, :DRAFTED]))  # tokens that are then rolled back
        again = model.probs(context, TokenTree.chain(text[:, COMMITTED:]))
    except Exception as error:  # any error of code that does not expect such a cache
        raise UnusableModelError(f"{name}: its cache takes no drafted tokens ({first_line(error)})") from error
    if not plain.isfinite().all():
        return 0.0  # NaN for any cache: the loop finds it, and it becomes the cell's status
    found = float(((again - plain).abs().sum(-1) / 2).max())
    return math.inf if math.isnan(found) else found


def allowed(change: float, network: Any, width: int) -> bool:
    """Whether this change may be rounding. In 16 bits plain passes measure the rounding, if it is more than
    usual: kernels differ with the number of tokens, and the distributions of some networks are steep."""
    if change <= TOLERANCE.get(network.dtype, LOOSE):
        return True
    return network.dtype not in TOLERANCE and change <= min(MOST, TIMES * noise(network, width))


@torch.no_grad()
def noise(network: Any, width: int) -> float:
    """Total variation between plain passes over one token, and over several, of texts with the same prefix."""
    ids = torch.arange(2, 2 + COMMITTED + DRAFTED, device=network.device).unsqueeze(0)
    text, sampling = ids % network.config.get_text_config(decoder=True).vocab_size, Sampling()
    whole = sampling(network(input_ids=text).logits, width)
    begun = (1, *range(COMMITTED, COMMITTED + DRAFTED))
    parts = torch.cat([sampling(network(input_ids=text[:, :n]).logits[:, -1:], width) for n in begun], 1)
    places = torch.tensor(begun, device=text.device) - 1
    return float(((parts - whole[:, places]).abs().sum(-1) / 2).max())


def context_of(ids: Tensor, drafted: int) -> Context:
    """The sequence ids [1, n] with space for `drafted` tokens after it."""
    pos = torch.tensor([ids.shape[1] - 1], device=ids.device)
    alive = torch.ones(1, dtype=torch.bool, device=ids.device)
    seq = torch.cat([ids, ids.new_zeros((1, drafted + 2))], 1)
    return Context(seq, pos, alive, pos + drafted, pos.new_empty(0), alive.clone(), seq.shape[1])
