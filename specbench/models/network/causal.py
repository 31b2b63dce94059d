"""A Hugging Face decoder as a `Model`: our positions, masks and cache; its own modelling code, unchanged."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.protocols import After
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import STEP, Context, Verdict
from specbench.errors import UsageError
from specbench.models.execution.compiled import Passes
from specbench.models.network.attention import NAME, queries
from specbench.models.network.caches import OWN, Memory, RowStaticCache
from specbench.models.network.learning import Learning
from specbench.models.network.passes import Composer, Pass, windows_of
from specbench.models.network.retrieved import Retrieved
from specbench.models.network.sampling import Ranks, Sampling, known_tokens, proper_rows
from specbench.models.network.skipping import Skipped

TEXTS = 512  # one-token sequences per pass, which has as many rows of logits


class Causal:
    """A causal language model with a row-static cache. `width` is V, the width of the target's head.

    `fixed`: the cache keeps its address for the next batch, of as many rows and slots. `passes` runs
    single passes, each compiled separately instead of whole rounds. `memory` is that of the cache.
    """

    static: ClassVar[bool] = True

    def __init__(
        self,
        network: Any,
        sampling: Sampling,
        width: int,
        fixed: bool = False,
        passes: Passes | None = None,
        memory: Memory = OWN,
    ) -> None:
        self.network, self.sampling, self.width, self.fixed, self.passes = network, sampling, width, fixed, passes
        self.memory = memory
        self.config = network.config.get_text_config(decoder=True)
        # Reading these from a network or its configuration takes longer than a small pass.
        self.dtype: torch.dtype = network.dtype
        self.place: torch.device = network.device
        self.composer = Composer(self.config, self.windows(), self.dtype)
        self.known = known_tokens(network, width)
        self.cache: RowStaticCache | None = None
        self.bigrams: Tensor | None = None
        self.heard: list[Ranks] = []

    def windows(self) -> dict[str, int | None]:
        return windows_of(self.config)

    def twin(self) -> "Causal":
        passes = None if self.passes is None else self.passes.fresh()
        return type(self)(self.network, self.sampling, self.width, self.fixed, passes, self.memory.beside())

    def alone(self) -> "Causal":
        """The same model with its own cache."""
        return type(self)(self.network, self.sampling, self.width)

    def learner(self, rate: float) -> tuple["Causal", Learning]:
        learning = Learning(self.network, self.sampling.temperature, rate)
        passes = None if self.passes is None else self.passes.fresh(frozen=False)
        memory = self.memory.beside()
        return type(self)(learning.served, self.sampling, self.width, self.fixed, passes, memory), learning

    def ranking(self, most: int) -> Ranks:
        self.heard.append(Ranks(self, most))
        return self.heard[-1]

    def skipping(self) -> Skipped:
        return Skipped(self)

    def retrieved(self, budget: int, chunk: int, tail: int) -> Retrieved:
        if not self.composer.hides_nothing:
            attention = self.config._attn_implementation
            why = "is a window" if attention == NAME else f"({attention}) shows no queries"
            name = type(self.network).__name__
            raise UsageError(f"{name}: no keys can be retrieved, its attention {why}: use a method without Retrieval")
        return Retrieved(self, self.twin(), budget, chunk, tail)

    @torch.no_grad()
    def start(self, context: Context) -> None:
        if self.cache is None or not self.fixed:
            self.cache = RowStaticCache(self.config.num_hidden_layers, context.seq.shape[1], self.memory)
        self.cache.clear()
        longest = max(int(context.pos.max()), int(self.fixed))  # a fixed cache is allocated here, not in a round
        if longest:  # values of a shorter row after its end are overwritten before they are read
            slots = torch.arange(longest, device=context.seq.device).expand(context.rows, -1)
            self._forward(self.composer.chain(replace(context, reach=longest), slots, whole=True), keep=1)

    @torch.no_grad()
    def admit(self, context: Context, row: int) -> None:
        if self.cache is None or self.cache.empty:  # prompts of one token, and no round yet
            return self.start(context)
        alone = self.alone()
        alone.start(context.select(torch.tensor([row], device=context.pos.device)))
        assert alone.cache is not None
        return self.cache.put(row, alone.cache)

    @torch.no_grad()
    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        fed = self.composer.committed(context, refeed + 1)
        logits = self._forward(self.composer.tree(context, tree, fed))[:, refeed:]
        for ranks in self.heard:
            ranks.hear(logits)
        return self._rows(context, logits)

    @torch.no_grad()
    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        if tree.size:
            logits = self._forward(self.composer.nodes(context, tree, new))
        else:
            fed = self.composer.committed(context, refeed + 1)
            logits = self._forward(self.composer.chain(context, fed))[:, -1:]
        return scores_of(logits, self.width) if raw else self._rows(context, logits)

    @torch.no_grad()
    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        # The first step feeds two tokens: after a fully accepted round the second last was committed but
        # never fed. Always feeding both keeps the shapes constant and needs no branch on the acceptance.
        slots, feed = self.composer.committed(context, refeed + 1), None
        ids, rows = [], []
        for _ in range(k):
            logits = self._forward(self.composer.chain(context, slots, feed))[:, -1]
            rows.append(self._rows(context, logits))
            ids.append(rng.categorical(rows[-1], Stream.DRAFT))
            if after is not None and after(ids[-1], logits):
                break
            feed, slots = ids[-1].unsqueeze(1), slots[:, -1:] + 1
        return torch.stack(ids, 1), torch.stack(rows, 1)

    @torch.no_grad()
    def read(self, context: Context, tokens: int, block: int) -> Tensor:
        """[tokens, V'] logits along the sequence already in context.seq [1, L], fed `block` tokens at a time.
        Passes read the same slots as those of eager rounds, so that attention has the same lengths."""
        self.start(context)
        parts, root = [], int(context.pos)
        for begin in range(0, tokens, block):
            slots = context.pos.unsqueeze(1) + torch.arange(
                begin, min(begin + block, tokens), device=context.pos.device
            )
            end, tight = root + begin + slots.shape[1], self.composer.hides_nothing and slots.shape[1] == 1
            reach = end if tight else min(-(-end // STEP) * STEP, context.reach)
            parts.append(self._forward(self.composer.chain(replace(context, reach=reach, tight=tight), slots)))
        return torch.cat(parts, 1)[0]

    @torch.no_grad()
    def along(self, context: Context, slots: Tensor) -> Tensor:
        """[B, m, V'] the logits of committed tokens at slots [B, m], which are fed once more."""
        one = self.composer.chain(replace(context, tight=False), slots)
        return self._forward(one, keep=slots.shape[1])

    @torch.no_grad()
    def successors(self) -> Tensor:
        if self.bigrams is None:
            texts = torch.arange(self.width, device=self.network.device).unsqueeze(1)
            self.bigrams = torch.cat([self._after_one(ids) for ids in torch.split(texts, TEXTS)])
        return self.bigrams

    def _after_one(self, ids: Tensor) -> Tensor:
        """[B] the most probable token after each of the sequences [B, 1], whatever the cache holds."""
        alone, start = Causal(self.network, self.sampling, self.width), torch.zeros_like(ids[:, 0])
        all_of_them = torch.ones_like(start, dtype=torch.bool)
        context = Context(ids, start, all_of_them, start, start[:0], all_of_them.clone(), reach=1)
        alone.start(context)
        return alone.expand(context, TokenTree.chain(ids[:, :0]), 0, raw=True)[:, 0].argmax(-1)

    @torch.no_grad()
    def queries(self, context: Context) -> list[Tensor]:
        """[B, H, D] of every layer: the queries of the last committed token, which is fed for them."""
        with queries() as seen:
            self._forward(self.composer.chain(context, self.composer.committed(context, 1)), keep=1)
        return [query[:, :, -1] for query in seen]

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        if tree.topology.is_chain or self.cache is None:
            return  # the accepted tokens of a chain are already at their slots
        level = torch.arange(verdict.path.shape[1], device=start.device)
        first = start.unsqueeze(1) + 1
        node = torch.where(verdict.path >= 0, verdict.path, level)
        self.cache.move(first + node, first + level)

    def _rows(self, context: Context, logits: Tensor) -> Tensor:
        known = None if self.known is None else self.known.to(logits.device)
        return proper_rows(context, self.sampling, logits, self.width, known)

    def _forward(self, one: Pass, keep: int = 0) -> Tensor:
        """Logits [B, q, V'] of a pass (of its last `keep` tokens unless that is 0)."""
        assert self.cache is not None, "start() comes before any other call"
        names = tuple(one.mask) if isinstance(one.mask, dict) else ()

        def run(ids: Tensor, positions: Tensor, slots: Tensor, *masks: Tensor) -> Tensor:
            assert self.cache is not None
            self.cache.slots.place(slots, one.reach)
            return self.network(  # type: ignore[no-any-return]
                input_ids=ids.clamp_max(self.config.vocab_size - 1),  # ids that only the target has
                position_ids=positions,
                attention_mask=dict(zip(names, masks, strict=True)) if names else masks[0],
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=keep,
            ).logits

        inputs = (one.ids, one.positions, one.slots, *(one.mask.values() if names else (one.mask,)))
        if one.ids.device != self.place:  # a draft on its own device: only tokens and rows are transferred
            return run(*(part.to(self.place) for part in inputs)).to(one.ids.device)
        return run(*inputs) if keep or self.passes is None else self.passes(run, *inputs)


def scores_of(logits: Tensor, width: int) -> Tensor:
    """Logits [B, n, V'] as scores [B, n, width]: unknown tokens come last."""
    logits = logits[..., :width]
    return F.pad(logits, (0, width - logits.shape[-1]), value=-torch.inf)
