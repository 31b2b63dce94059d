"""Searches: the best tree for a pair, and the layers that a self-drafting target skips."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specbench.backends.base import Backend, Networks
from specbench.data.prompts import Prompt
from specbench.decoding.decode import begin, steps
from specbench.decoding.drafters.tree import Branching, Distinct, Expand, Top
from specbench.decoding.loop import Speculate, Step
from specbench.decoding.randomness import Source
from specbench.decoding.timing import Clock
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.measure.group import seed_of
from specbench.measure.plan import read_prompts
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import with_layers
from specbench.spec import RunSpec
from specbench.theory import formulas
from specbench.theory.optimum import Aim, Costs, Search, Size, best_sizes

K_MOST = 8  # largest lookahead for predictions
Kept = tuple[int, ...]  # layer indices in ascending order
DRAWN, REPEAT, WARMUP = 8, 11, 2  # tokens of a timed draft, its repetitions, and its warm-up
LEVELS = 2  # of the wide tree: drafts after a correction and after an accepted draft both count


@dataclass(frozen=True)
class Scored:
    """A layer set: its acceptance α on known texts, and c, a drafted token ÷ a step of the target."""

    kept: Kept
    alpha: float
    c: float

    @property
    def k(self) -> int:
        """The lookahead from 1 to 8 with the highest predicted speedup."""
        return max(range(1, K_MOST + 1), key=lambda k: formulas.speedup(self.alpha, k, self.c))

    @property
    def speedup(self) -> float:
        """The predicted speedup at that lookahead; exactly 1 with all layers."""
        return formulas.speedup(self.alpha, self.k, self.c)


@dataclass(frozen=True)
class Move:
    """One step of a search: the change, and the resulting layer set."""

    done: str
    set: Scored


@dataclass(frozen=True)
class SearchPath:
    """The moves in order, starting with all layers; `cut`: the search stopped at the limit of evaluations."""

    steps: tuple[Move, ...]
    evaluations: int
    cut: bool

    @property
    def best(self) -> Scored:
        """The set with the greatest predicted speedup that skips some layers; the first among equals."""
        return max((step.set for step in self.steps[1:]), key=lambda found: found.speedup)


@dataclass
class Scoring:
    """The scores of all sets so far, at most `most` of them; `watch` is called with every new one."""

    score: Callable[[Kept], Scored]
    most: int
    watch: Callable[[int, Scored], None]
    known: dict[Kept, Scored] = field(default_factory=dict)
    cut: bool = False

    def of(self, kept: Kept) -> Scored:
        if kept not in self.known:
            self.known[kept] = self.score(kept)
            self.watch(len(self.known), self.known[kept])
        return self.known[kept]

    def best(self, moves: dict[Kept, str]) -> Move | None:
        """The best set among some moves; None without moves, or if there are too many to score."""
        if len(self.known) + len(moves.keys() - self.known.keys()) > self.most:
            self.cut = True
            return None
        found = max(map(self.of, moves), key=lambda one: (one.speedup, one.alpha), default=None)
        return None if found is None else Move(moves[found.kept], found)


def search(
    depth: int,
    score: Callable[[Kept], Scored],
    most: int,
    watch: Callable[[int, Scored], None] = lambda number, scored: None,
) -> SearchPath:
    """Skip the layer that costs least until one is left; then swap layers of the best set until nothing improves.

    Every move scores all sets that it can lead to, or is not made: at most `most` sets are scored. Deterministic if
    `score` is. `depth` is at least 2, and `most` at least depth + 1, so that one layer can be skipped.
    """
    scores = Scoring(score, most, watch)
    steps = [Move("all layers", scores.of(tuple(range(depth))))]
    while step := scores.best(removals(steps[-1].set.kept)):
        steps.append(step)
    at = SearchPath(tuple(steps), 0, False).best
    while (step := scores.best(swaps(at.kept, depth))) and step.set.speedup > at.speedup:
        steps.append(step)
        at = step.set
    return SearchPath(tuple(steps), len(scores.known), scores.cut)


def removals(kept: Kept) -> dict[Kept, str]:
    """Every set with one layer less, by description; empty for a single layer."""
    smaller = {tuple(layer for layer in kept if layer != gone): f"without {gone}" for gone in kept}
    return {one: done for one, done in smaller.items() if one}


def swaps(kept: Kept, depth: int) -> dict[Kept, str]:
    """Every set with one layer replaced."""
    out = [layer for layer in range(depth) if layer not in kept]
    return {tuple(sorted({*kept, new} - {old})): f"{new} for {old}" for old in kept for new in out}


def slices(kept: Kept) -> Iterator[str]:
    """Layers in the notation of names: 0, 1, 2, 5 → 0:3 and 5."""
    first = 0
    for place, layer in enumerate(kept):
        if place + 1 == len(kept) or kept[place + 1] != layer + 1:
            start = kept[first]
            yield str(start) if start == layer else f"{start}:{layer + 1}"
            first = place + 1


def name(kept: Kept) -> str:
    """The name of the network with these layers of the target, as in method files."""
    return f"target[{','.join(slices(kept))}]"


@dataclass(frozen=True)
class Written:
    """A network's output: ids [1, L] of prompt and new tokens but the last, p [n, V] of the n new tokens."""

    ids: Tensor
    p: Tensor


@torch.no_grad()
def written_by(network: Any, prompt: Sequence[int], new: Sequence[int], sampling: Sampling, width: int) -> Written:
    """A prompt and the tokens that the network generated after it, at least one."""
    device = next(network.parameters()).device
    ids = torch.tensor([[*prompt, *new][:-1]], device=device)
    return Written(ids, rows(network, ids, len(new), sampling, width))


def rows(network: Any, ids: Tensor, last: int, sampling: Sampling, width: int) -> Tensor:
    """[last, V] distributions of the tokens after the last ones of a sequence, by one pass over it."""
    logits = network(input_ids=ids, use_cache=False, logits_to_keep=last).logits
    return sampling(logits[0, -last:], width)


@torch.no_grad()
def alpha_of_layers(network: Any, kept: Sequence[int], texts: Sequence[Written], sampling: Sampling) -> float:
    """α of the kept layers: the mean of Σ min(p, q) over all new tokens, along the full network's output.

    Greedy distributions are points: then it is the share of tokens on which both agree.
    """
    draft = with_layers(network, kept)
    shared = [
        torch.minimum(text.p, rows(draft, text.ids, len(text.p), sampling, text.p.shape[1])).sum(1).double()
        for text in texts
    ]
    return float(torch.cat(shared).mean().clamp(0, 1))


def layer_shares(depth: int) -> Callable[[int], float]:
    """c by the number of kept layers, assuming that only layers take time."""
    return lambda kept: kept / depth


def timed_costs(
    network: Any, prompt: Sequence[int], sampling: Sampling, width: int, source: Source, clock: Clock
) -> Callable[[int], float]:
    """c by the number of kept layers: the line through the cost of a drafted token with one and with all layers.

    All layers are assumed to cost the same. Both are timed alternately after the same prompt, and medians are used.
    """
    depth = network.config.get_text_config(decoder=True).num_hidden_layers
    device = next(network.parameters()).device
    context = begin([list(prompt)], DRAWN, DRAWN, [], device)
    models = [Causal(with_layers(network, range(layers)), sampling, width) for layers in (1, depth)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for model in models:
        model.start(context)
    for _ in range(WARMUP + REPEAT):
        for model, times in zip(models, seconds, strict=True):
            clock.start()
            model.sample(context, DRAWN, source, refeed=0)
            times.append(clock.stop()[0])
    one, every = (median(times[WARMUP:]) for times in seconds)
    first = min(one / every, 1.0)  # in case noise hides the cost of a layer
    return lambda kept: first + (1 - first) * (kept - 1) / (depth - 1)


@dataclass(frozen=True)
class ChildCounts:
    """The number of nodes whose children were tested, and of those at which the first, second … child was accepted."""

    tested: int
    accepted: tuple[int, ...]

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The acceptance of each child, up to the last one ever accepted; at least the first."""
        last = max((child for child, hits in enumerate(self.accepted) if hits), default=0)
        return tuple(hits / max(self.tested, 1) for hits in self.accepted[: last + 1])


@dataclass(frozen=True)
class BestTree:
    """The best tree and the best chain, with their inputs.

    counts: measured acceptance; costs: of a round at this context length; trees: the best one of each size;
    parents: the best tree itself, the parent of every node.
    """

    counts: ChildCounts
    context: int
    costs: Costs
    trees: tuple[Size, ...]
    tree: Size
    chain: Size
    parents: tuple[int, ...]


def branching_of(spec: RunSpec) -> Branching:
    """How children are chosen: the most probable when greedy, as all draws are equal then; else without replacement."""
    return Distinct() if spec.temperature else Top()


def best_tree(counts: ChildCounts, context: int, costs: Costs, nodes: int, depth: int, aim: Aim) -> BestTree:
    """The best tree within a number of nodes and levels. UsageError if no first child was ever accepted."""
    if not counts.acceptance[0]:
        raise UsageError("no first child was accepted anywhere: with this draft no tree pays; choose another draft")
    rest = (costs.first, costs.later, costs.verify, costs.overhead)
    trees, chains = (Search.over(chances, nodes, depth) for chances in (counts.acceptance, counts.acceptance[:1]))
    sizes = best_sizes(trees, *rest, aim)
    best, chain = (max(some, key=attrgetter(aim)) for some in (sizes, best_sizes(chains, *rest, aim)))
    return BestTree(counts, context, costs, sizes, best, chain, trees.tree(best.nodes, best.depth))


def check_room(backend: Backend, nodes: int) -> None:
    """Raise UsageError if no pass over this many nodes fits after a prompt."""
    if nodes + 1 >= backend.context:
        raise UsageError(
            f"--nodes {nodes}: the models' context of {backend.context} tokens holds no such tree after a prompt; "
            "choose fewer"
        )


def prompts_with_room(backend: Backend, spec: RunSpec, children: int) -> list[Prompt]:
    """The prompts of a spec that leave room for the new tokens and the wide tree."""
    nodes = sum(children**level for level in range(1, LEVELS + 1))
    return list(read_prompts(spec, backend, spec.max_new_tokens + nodes + 1).prompts)


def count_children(
    networks: Networks,
    work: Sequence[tuple[RunSpec, Sequence[Prompt]]],
    children: int,
    watch: Callable[[RunSpec], None] = lambda spec: None,
) -> ChildCounts:
    """Decode the prompts of every spec with a tree of this many children per node, and count."""
    tested, accepted = 0, [0] * children
    for spec, prompts in work:
        watch(spec)
        models = networks.models(spec)
        drafter = Expand(models["draft"], LEVELS, [children] * LEVELS, branching_of(spec))
        method = Speculate(drafter, models["target"], Rejection())
        new, eos = spec.max_new_tokens, networks.eos(spec)
        for prompt in prompts:
            rng = networks.source(spec, [seed_of(spec, prompt.id, 0, "method")])
            with networks.gradless():
                context = begin([prompt.ids], new, drafter.room, eos, networks.device)
                for step in steps(method, context, new, rng):
                    seen = child_counts(step)
                    tested += seen.tested
                    accepted = [a + b for a, b in zip(accepted, seen.accepted, strict=False)]
    return ChildCounts(tested, tuple(accepted))


def child_counts(step: Step) -> ChildCounts:
    """The tested levels of a batch of one up to the last emitted token, by the accepted child."""
    child = {node: number for number, rank in enumerate(step.draft.tree.topology.ranks) for node in rank.nodes}
    path = step.verdict.path[0, : int(step.round.accepted[0])].tolist()
    counts = [0] * len(step.draft.tree.topology.ranks)
    for node in path:
        counts[child[node]] += 1
    return ChildCounts(int(step.round.tested[0]), tuple(counts))


def tree_method(found: BestTree, spec: RunSpec, data: Sequence[str]) -> dict[str, Any]:
    sampling = f"temperature {spec.temperature:g}" if spec.temperature else "greedy"
    size, branching = found.tree, type(branching_of(spec)).__name__
    drafter = {"Planned": {"model": "draft", "parents": list(found.parents), "branching": branching}}
    return {
        "summary": f"Sequoia's best tree for {spec.target} and {spec.draft} ({sampling}, on {', '.join(data)}): "
        f"{size.nodes} nodes in {size.depth} levels",
        "paper": "Sequoia, Chen et al. 2024 (arXiv 2402.12374), tree search from measured acceptance and costs",
        "lossless": True,
        "method": {"Speculate": {"drafter": drafter, "model": "target", "verifier": "Rejection"}},
    }
