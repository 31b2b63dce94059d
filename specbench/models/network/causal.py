"""A Hugging Face decoder as a `Model`: our positions, our masks, our cache; its own modelling code, unchanged.

Knows one network and the law of its rows; must not know whether it judges or drafts.
"""

from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.randomness import Source, Stream
from specbench.decoding.rounds import STEP
from specbench.decoding.tokens import TokenTree, constant
from specbench.decoding.types import After, Context, Verdict
from specbench.models.execution.compiled import Passes
from specbench.models.network.attention import NAME, for_groups, queries
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.law import Law
from specbench.models.network.masks import additive, causal_mask, tree_mask
from specbench.models.network.retrieved import Layout, Retrieved, unreadable

TEXTS = 512  # one-token texts in a pass, which has as many rows of logits


class Causal:
    """A causal language model with a row-static cache. `width` is V, the width of the target's head.

    `fixed`: the cache stays where it is from one text to the next, which must have as many rows and places. `passes`
    runs the short passes, where not whole rounds are made ready but every pass by itself. `layout`: see `Retrieved`.
    """

    static: ClassVar[bool] = True

    def __init__(self, network: Any, law: Law, width: int, fixed: bool = False, passes: Passes | None = None) -> None:
        self.network, self.law, self.width, self.fixed, self.passes = network, law, width, fixed, passes
        self.config = network.config.get_text_config(decoder=True)
        self.dtype: torch.dtype = network.dtype  # to ask a network or its configuration takes longer than a small pass
        self.cache: RowStaticCache | None = None
        self.layout: Layout | None = None
        self.bigrams: Tensor | None = None

    def twin(self) -> "Causal":
        passes = None if self.passes is None else self.passes.fresh()
        return type(self)(self.network, self.law, self.width, self.fixed, passes)

    def retrieved(self, budget: int, chunk: int, tail: int) -> Retrieved:
        if not self.hides_nothing:
            raise unreadable(type(self.network).__name__, self.config._attn_implementation)
        return Retrieved(self, self.twin(), budget, chunk, tail)

    @torch.no_grad()
    def start(self, context: Context) -> None:
        if self.cache is None or not self.fixed:
            self.cache = RowStaticCache(self.config.num_hidden_layers, context.seq.shape[1])
        self.cache.clear()
        longest = max(int(context.pos.max()), int(self.fixed))  # a cache that stays is allocated here, not in a round
        if longest:  # a row that is shorter than the longest gets rubbish behind its end, which is overwritten in time
            positions = torch.arange(longest, device=context.seq.device).expand(context.rows, -1)
            mask = self._see_all(positions) if self.hides_nothing else self._chain_mask(positions, longest)
            self._forward(context.seq[:, :longest], positions, positions, mask, longest, keep=1)

    @torch.no_grad()
    def admit(self, context: Context, row: int) -> None:
        if self.cache is None or self.cache.empty:  # prompts of one token, and no round yet
            return self.start(context)
        alone = type(self)(self.network, self.law, self.width)
        alone.start(context.select(torch.tensor([row], device=context.pos.device)))
        assert alone.cache is not None
        return self.cache.put(row, alone.cache)

    @torch.no_grad()
    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        fed = self._last(context, refeed + 1)
        nodes = torch.arange(tree.size, device=fed.device)
        slots = torch.cat([fed, context.pos.unsqueeze(1) + 1 + nodes], 1)
        ids = torch.cat([context.seq.gather(1, fed), tree.ids], 1)
        if tree.topology.is_chain:
            free = self.hides_nothing and context.tight and slots.shape[1] == 1
            mask = self._see_all(slots) if free else self._chain_mask(slots, context.reach)
            logits = self._forward(ids, self._within(context, slots), slots, mask, context.reach)
        else:
            depths = constant(tree.topology.depths, fed.device)
            positions = torch.cat([fed, context.pos.unsqueeze(1) + depths], 1)
            mask = self._tree_mask(fed, tree, context.reach, slots.shape[1])
            logits = self._forward(ids, self._within(context, positions), slots, mask, context.reach)
        return self._rows(context, logits[:, fed.shape[1] - 1 :])

    @torch.no_grad()
    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        fed = self._last(context, refeed + 1)
        if not tree.size:
            mask = self._chain_mask(fed, context.reach)
            logits = self._forward(context.seq.gather(1, fed), self._within(context, fed), fed, mask, context.reach)
            logits = logits[:, -1:]
        else:
            nodes = torch.arange(tree.size - new, tree.size, device=fed.device)
            slots = context.pos.unsqueeze(1) + 1 + nodes
            positions = context.pos.unsqueeze(1) + constant(tree.topology.depths, fed.device)[-new:]
            mask = self._tree_mask(fed[:, -1:], tree, context.reach, new)
            logits = self._forward(tree.ids[:, -new:], self._within(context, positions), slots, mask, context.reach)
        return self._scores(logits) if raw else self._rows(context, logits)

    def _scores(self, logits: Tensor) -> Tensor:
        """Logits [B, n, V'] as scores [B, n, V]: what the draft does not know comes last."""
        logits = logits[..., : self.width]
        return F.pad(logits, (0, self.width - logits.shape[-1]), value=-torch.inf)

    @torch.no_grad()
    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        # The first step feeds two tokens: after a fully accepted round the second last was committed but never fed.
        # Always feeding both keeps the shapes constant and needs no branch on what was accepted.
        fed = self._last(context, refeed + 1)
        ids, rows = [], []
        feed = context.seq.gather(1, fed)
        for _ in range(k):
            mask = self._chain_mask(fed, context.reach)
            logits = self._forward(feed, self._within(context, fed), fed, mask, context.reach)
            rows.append(self._rows(context, logits[:, -1]))
            ids.append(rng.categorical(rows[-1], Stream.DRAFT))
            if after is not None and after(ids[-1], logits[:, -1]):
                break
            feed, fed = ids[-1].unsqueeze(1), fed[:, -1:] + 1
        return torch.stack(ids, 1), torch.stack(rows, 1)

    @torch.no_grad()
    def read(self, context: Context, tokens: int, block: int) -> Tensor:
        """[tokens, V'] logits along the text that already lies in context.seq [1, L], fed `block` tokens at a time.

        Passes read the places that those of eager rounds read: else the difference between two ways of feeding would
        lack that between the two lengths of attention.
        """
        self.start(context)
        parts, root = [], int(context.pos)
        for begin in range(0, tokens, block):
            fed = context.pos.unsqueeze(1) + torch.arange(begin, min(begin + block, tokens), device=context.pos.device)
            end, alone = root + begin + fed.shape[1], self.hides_nothing and fed.shape[1] == 1
            reach = end if alone else min(-(-end // STEP) * STEP, context.reach)
            mask = self._see_all(fed) if alone else self._chain_mask(fed, reach)
            parts.append(self._forward(context.seq.gather(1, fed), fed, fed, mask, reach))
        return torch.cat(parts, 1)[0]

    @torch.no_grad()
    def successors(self) -> Tensor:
        if self.bigrams is None:
            texts = torch.arange(self.width, device=self.network.device).unsqueeze(1)
            self.bigrams = torch.cat([self._after_one(ids) for ids in torch.split(texts, TEXTS)])
        return self.bigrams

    def _after_one(self, ids: Tensor) -> Tensor:
        """[B] the most probable token after each of the texts [B, 1], whatever lies in the cache."""
        alone, start = Causal(self.network, self.law, self.width), torch.zeros_like(ids[:, 0])
        all_of_them = torch.ones_like(start, dtype=torch.bool)
        context = Context(ids, start, all_of_them, start, start[:0], all_of_them.clone(), reach=1)
        alone.start(context)
        return alone.expand(context, TokenTree.chain(ids[:, :0]), 0, raw=True)[:, 0].argmax(-1)

    @torch.no_grad()
    def queries(self, context: Context) -> list[Tensor]:
        """[B, H, D] of every layer: the queries of the last committed token, which is fed for them."""
        fed = self._last(context, 1)
        mask = self._chain_mask(fed, context.reach)
        with queries() as seen:
            positions = self._within(context, fed)
            self._forward(context.seq.gather(1, fed), positions, fed, mask, context.reach, keep=1)
        return [query[:, :, -1] for query in seen]

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        if tree.topology.is_chain or self.cache is None:
            return  # the accepted tokens of a chain already lie where they belong
        level = torch.arange(verdict.path.shape[1], device=start.device)
        behind = start.unsqueeze(1) + 1
        node = torch.where(verdict.path >= 0, verdict.path, level)
        self.cache.move(behind + node, behind + level)

    def select(self, rows: Tensor) -> None:
        if self.cache is not None:
            self.cache.select(rows)

    def _last(self, context: Context, tokens: int) -> Tensor:
        """[B, tokens] positions of the last committed tokens; the first of all stands in for those before it."""
        back = constant(tuple(range(1 - tokens, 1)), context.pos.device)
        places = (context.pos.unsqueeze(1) + back).clamp_min(0)
        return places if self.layout is None else torch.maximum(places, self.layout.floor.unsqueeze(1))

    def _within(self, context: Context, positions: Tensor) -> Tensor:
        """Positions [B, q] up to the end of every row: what is drafted behind it beside longer rows is never emitted,
        and a network whose positions are learned may have none there."""
        return torch.minimum(positions, context.last.unsqueeze(1))

    def _rows(self, context: Context, logits: Tensor) -> Tensor:
        """Logits [B, ..., V'] as laws [B, ..., V]; remembers rows that are none."""
        rows, proper = self.law.checked(logits, self.width)
        context.finite &= proper.flatten(1).all(1) if proper.ndim > 1 else proper
        return rows

    def _forward(self, ids: Tensor, positions: Tensor, slots: Tensor, mask: Any, reach: int, keep: int = 0) -> Tensor:
        """Logits [B, q, V'] (the last `keep` rows where it is not 0) of tokens ids [B, q] written to slots [B, q]."""
        assert self.cache is not None, "start() comes before any other call"
        names = tuple(mask) if isinstance(mask, dict) else ()
        positions = positions if self.layout is None else positions + self.layout.shift.unsqueeze(1)

        def run(ids: Tensor, positions: Tensor, slots: Tensor, *masks: Tensor) -> Tensor:
            assert self.cache is not None
            self.cache.slots.index, self.cache.slots.reach = slots, reach
            output = self.network(
                input_ids=ids.clamp_max(self.config.vocab_size - 1),  # a draft may misread ids that only the target has
                position_ids=positions,
                attention_mask=dict(zip(names, masks, strict=True)) if names else masks[0],
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=keep,
            )
            logits: Tensor = output.logits
            return logits

        inputs = (ids, positions, slots, *(mask.values() if names else (mask,)))
        return run(*inputs) if keep or self.passes is None else self.passes(run, *inputs)

    @cached_property
    def windows(self) -> dict[str, int | None]:
        """The attention window of every layer type of the network; one entry where all layers are of one type."""
        window = getattr(self.config, "sliding_window", None)
        types = set(getattr(self.config, "layer_types", None) or ())
        if len(types) > 1:
            return {name: window if "sliding" in name else None for name in types}
        if types == {"full_attention"} or getattr(self.config, "use_sliding_window", True) is False:
            window = None
        return {"": window}

    @cached_property
    def hides_nothing(self) -> bool:
        """Whether a query may see all that lies before it, and the attention is ours, which needs no mask for that."""
        return self.config._attn_implementation == NAME and self.windows == {"": None}

    def _see_all(self, slots: Tensor) -> Tensor:
        """A mask that hides nothing but what lies behind a query: of one, or of all from the first on."""
        return slots.new_empty((slots.shape[0], 1, 1, 0), dtype=self.dtype)

    def _per_type(self, masks: dict[str, Tensor]) -> Any:
        # Added to the scores: eager attention knows nothing else, and sdpa would convert a boolean mask in every layer.
        if self.layout is not None:
            masks = {name: mask & self.layout.seen(mask.shape[-1]) for name, mask in masks.items()}
        ready = {name: for_groups(additive(m, self.dtype), self.config) for name, m in masks.items()}
        return ready.get("", ready)

    def _chain_mask(self, positions: Tensor, reach: int) -> Any:
        return self._per_type({name: causal_mask(positions, reach, w) for name, w in self.windows.items()})

    def _tree_mask(self, fed: Tensor, tree: TokenTree, reach: int, queries: int) -> Any:
        """For the last so many of the fed tokens and the nodes."""
        masks = {name: tree_mask(fed, tree, reach, w)[:, :, -queries:] for name, w in self.windows.items()}
        return self._per_type(masks)
