"""Tiny random Hugging Face networks in float64, and the checks that hold a cached model against a cache-less one.

The oracle is the network itself: one plain forward over the whole sequence, with the positions and masks that
transformers makes, and no cache. Whatever specbench reports for a node of a tree must be the row of that forward.
"""

import copy
import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.gemma2 import modeling_gemma2

from specbench.decoding import decode, rounds
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Cacheless
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context
from specbench.models.checkpoints.description import attention, experts
from specbench.models.network.sampling import Sampling
from tests.support.families import CONFIGS, RECURRENT
from tests.support.rows import select
from tests.support.sources import enumerate_outcomes
from tests.support.toys import levels_left

CPU = torch.device("cpu")
TOLERANCE = 1e-12


@lru_cache(maxsize=64)
def network(
    name: str, vocab: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64, layers: int | None = None
) -> Any:
    """A random network whose laws are far from uniform and depend on every token; shared, so nobody may change it."""
    config, shape = {**CONFIGS, **RECURRENT}[name]
    if layers is not None:
        shape = {**shape, "n_layer" if "n_layer" in shape else "num_hidden_layers": layers}
    config = config(vocab_size=vocab, bos_token_id=None, eos_token_id=None, pad_token_id=None, **shape)
    how = {"attn_implementation": attention(config), "experts_implementation": experts(config, dtype)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # some biases of recurrent networks are drawn
        built = hf.AutoModelForCausalLM.from_config(config, **how).to(dtype).eval()
    generator = torch.Generator().manual_seed(1000 * seed + len(name))
    for parameter in built.parameters():
        noise = 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
        parameter.data = noise if parameter.ndim > 1 else parameter.data + noise
    return in_double(built)


def in_double(built: Any) -> Any:
    """Where transformers computes in float32 whatever the dtype, compute in the dtype of the network instead.

    Its RMS norms round to float32 inside, so that sums of another order (a difference of 1e-16) may come out one
    float32 step apart (1e-7) and hide errors of that size; the softmax of its eager attention and of its routers does
    the same.
    """
    for module in built.modules():
        for suffix, function in IN_DOUBLE.items():
            if type(module).__name__.endswith(suffix):
                module.forward = types.MethodType(function, module)
    modeling_gemma2.eager_attention_forward = eager_attention
    return built


def norm(self: Any, x: Tensor) -> Tensor:
    eps, gain = (self.eps, 1 + self.weight) if hasattr(self, "eps") else (self.variance_epsilon, self.weight)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def route(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    chances, experts = scores.softmax(-1).topk(self.top_k)
    shares = chances / chances.sum(-1, keepdim=True) if getattr(self, "norm_topk_prob", True) else chances
    return scores, shares, experts


IN_DOUBLE = {"RMSNorm": norm, "TopKRouter": route}


def eager_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    scores = scores if attention_mask is None else scores + attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


def context_of(prompts: Sequence[Sequence[int]], new: int, room: int, eos: Sequence[int] = ()) -> Context:
    """What `decode.begin` makes, with buffers as short as they may be: the tests hold many thousand rows at once."""
    context = decode.begin(prompts, new, room, eos, CPU)
    length = max(map(len, prompts)) + new + room + 2
    return replace(context, seq=context.seq[:, :length].clone(), reach=length)


@torch.inference_mode()
def plain_rows(net: Any, law: Sampling, width: int, sequences: Sequence[Sequence[int]]) -> Tensor:
    """[N, L, width] the laws after every token of N sequences of one length: no cache, no mask, no position of ours."""
    return law(net(input_ids=torch.tensor(sequences), use_cache=False).logits, width)


def committed(context: Context) -> list[list[int]]:
    return [row[: end + 1] for row, end in zip(context.seq.tolist(), context.pos.tolist(), strict=True)]


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root's child down to `node`."""
    return [*path_to(parents, parents[node]), node] if node != ROOT else []


def tree_rows(net: Any, law: Sampling, width: int, context: Context, tree: TokenTree) -> Tensor:
    """[B, n + 1, width] what `Model.probs` must return: for every node a plain forward over its own path."""
    rows = []
    for prefix, ids in zip(committed(context), tree.ids.tolist(), strict=True):
        paths = [path_to(tree.parents, node) for node in range(ROOT, tree.size)]
        rows.append([plain_rows(net, law, width, [prefix + [ids[n] for n in path]])[0, -1] for path in paths])
    return torch.stack([torch.stack(row) for row in rows])


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().nan_to_num(torch.inf).max())


# The exact law of whole sequences, by enumeration of every draw of every round.


@dataclass
class Branches:
    """Histories of a decode as rows of one batch: where they stand, their caches, their probability, their prompt."""

    context: Context
    caches: list[Any]
    weight: Tensor
    prompt: Tensor

    def take(self, method: Speculate, rows: Tensor) -> Context:
        """Put the given rows into the models of `method`, leaving this object as it is; returns their context."""
        for model, cache in zip(models_of(method), self.caches, strict=True):
            parts = (cache.slots, *cache.layers)
            tensors = [t for part in parts for t in vars(part).values() if isinstance(t, Tensor)]
            model.cache = copy.deepcopy(cache, {id(t): t for t in tensors})  # new objects around the same tensors
        select(method, rows)  # which replaces the tensors
        return self.context.select(rows)

    def select(self, method: Speculate, rows: Tensor) -> "Branches":
        context = self.take(method, rows)
        return Branches(context, [m.cache for m in models_of(method)], self.weight[rows], self.prompt[rows])


def models_of(method: Speculate) -> list[Any]:
    """Those with a cache of their own."""
    found = [method.model, *([method.drafter.model] if isinstance(method.drafter, ModelDrafter) else [])]
    return [getattr(one, "model", one) for one in found if not isinstance(one, Cacheless)]


@dataclass
class Exact:
    """law[i]: the probability of every sequence that can follow prompt i. rows: how many branches were decoded."""

    law: list[Counter[tuple[int, ...]]] = field(default_factory=list)
    rows: int = 0


def enumerate_law(
    method: Speculate,
    prompts: Sequence[Sequence[int]],
    new: int,
    eos: Sequence[int] = (),
    together: bool = False,
    short: bool = False,
) -> Exact:
    """The exact law of what `decode` emits, from production code run on all combinations of its draws.

    `short`: no round drafts more than its longest row can use, as under a schedule; there are fewer combinations then.
    Alone: branches that have as much left go on in one batch, so that each sees the drafts it would see alone.
    Together: all branches of all prompts stay in one batch to the end, the finished ones too, as in a ragged batch.
    """
    context = context_of(prompts, new, method.drafter.room, eos)
    method.start(context)
    rows = len(prompts)
    first = Branches(context, [m.cache for m in models_of(method)], torch.ones(rows).double(), torch.arange(rows))
    exact, waiting = Exact([Counter() for _ in prompts]), [first]
    while waiting:
        state = waiting.pop()
        most = levels_left(state.context)
        after, decoded = one_round(method, state, most - 1 if short else rounds.budget(method, most))
        exact.rows += decoded
        live, left = after.context.live, (after.context.last - after.context.pos) * after.context.live
        if together and live.any():
            waiting.append(after)
            continue
        collect(exact, after, prompts, ~live)
        waiting += [after.select(method, (left == n).nonzero()[:, 0]) for n in left[live].unique().tolist()]
    return exact


def one_round(method: Speculate, state: Branches, budget: int | None) -> tuple[Branches, int]:
    """All outcomes of a round; impossible ones are dropped, and equal ones merged into one of them."""

    def run(origin: Tensor, source: Source) -> tuple[Context, Tensor, list[Any]]:
        context = state.take(method, origin)
        step = method.advance(context, budget, source)
        return context, step.draft.tree.ids, [m.cache for m in models_of(method)]

    (context, drafted, caches), chance, origin = enumerate_outcomes(run, state.context.rows)
    weight, prompt = state.weight[origin] * chance, state.prompt[origin]
    seq = torch.where(torch.arange(context.seq.shape[1]) <= context.pos.unsqueeze(1), context.seq, -1)
    # what was drafted last belongs to the key: it lies in the caches, behind the end of what was accepted
    key = torch.cat([prompt.unsqueeze(1), seq, drafted * context.live.unsqueeze(1)], 1)
    possible = (weight > 0).nonzero()[:, 0]
    _, group = key[possible].unique(dim=0, return_inverse=True)
    total = torch.zeros(int(group.max()) + 1).double().index_add(0, group, weight[possible])
    members = torch.full_like(total, len(origin), dtype=torch.long).scatter_reduce(0, group, possible, "amin")
    merged = Branches(context, caches, weight, prompt).select(method, members)
    return replace(merged, weight=total), len(origin)


def collect(exact: Exact, branches: Branches, prompts: Sequence[Sequence[int]], rows: Tensor) -> None:
    for row, tokens in enumerate(committed(branches.context)):
        if rows[row]:
            prompt = int(branches.prompt[row])
            exact.law[prompt][tuple(tokens[len(prompts[prompt]) :])] += float(branches.weight[row])


def oracle_law(
    net: Any, law: Sampling, width: int, prompt: Sequence[int], new: int, eos: Sequence[int] = ()
) -> Counter[tuple[int, ...]]:
    """The law of autoregressive decoding without a cache."""
    ended: Counter[tuple[int, ...]] = Counter()
    going: Counter[tuple[int, ...]] = Counter({(): 1.0})
    for _ in range(new):
        if not going:
            break
        rows = plain_rows(net, law, width, [[*prompt, *tokens] for tokens in going])[:, -1].tolist()
        longer = Counter(
            {(*s, x): w * p for (s, w), row in zip(going.items(), rows, strict=True) for x, p in enumerate(row)}
        )
        ended.update({s: w for s, w in longer.items() if s[-1] in eos})
        going = Counter({s: w for s, w in longer.items() if s[-1] not in eos and w > 0})
    return ended + going


def difference(found: Counter[tuple[int, ...]], expected: Counter[tuple[int, ...]]) -> float:
    return max(abs(found[s] - expected[s]) for s in found.keys() | expected.keys())
