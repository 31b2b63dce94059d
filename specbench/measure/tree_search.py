"""Which tree a pair should draft: how often each child of a node is accepted, what a round costs, and the best of all.

Knows the loop, calibration and the search of `sequoia`; must not know the command line. Acceptance is read from the
verdicts of decodes with a wide tree, step by step, so nothing in them is timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from specbench.backends.base import Backend, Networks
from specbench.data.prompts import Prompt
from specbench.decoding.decode import begin, steps
from specbench.decoding.drafters.branching import Branching, Distinct, Top
from specbench.decoding.drafters.tree import Expand
from specbench.decoding.loop import Speculate, Step
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.measure.calibrate import calibrate, fitting
from specbench.measure.order import seed_of
from specbench.measure.prompting import read_prompts
from specbench.spec import RunSpec
from specbench.theory.costs import Costs
from specbench.theory.sequoia import Aim, Search, Size, best_sizes

LEVELS = 2  # of the wide tree: what follows a correction and what follows an accepted draft, both count


@dataclass(frozen=True)
class ChildCounts:
    """At how many nodes the children were judged, and at how many of these the first, second … child was accepted."""

    tested: int
    accepted: tuple[int, ...]

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The chance of each child, up to the last one that was ever accepted; at least that of the first."""
        last = max((child for child, hits in enumerate(self.accepted) if hits), default=0)
        return tuple(hits / max(self.tested, 1) for hits in self.accepted[: last + 1])


@dataclass(frozen=True)
class BestTree:
    """The best of all trees and the best of all chains, with what they follow from.

    counts: measured acceptance; costs: of a round at a context of so many tokens; trees: the best one of each size;
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
    """How children are chosen: the most probable when greedy, as all draws are alike then; else without replacement."""
    return Distinct() if spec.temperature else Top()


def best_tree(counts: ChildCounts, context: int, costs: Costs, nodes: int, depth: int, aim: Aim) -> BestTree:
    """The best tree of at most so many nodes and levels. UsageError where no first child was ever accepted."""
    if not counts.acceptance[0]:
        raise UsageError("no first child was accepted anywhere: with this draft no tree pays; choose another draft")
    rest = (costs.first, costs.later, costs.verify, costs.overhead)
    trees, chains = (Search.over(chances, nodes, depth) for chances in (counts.acceptance, counts.acceptance[:1]))
    sizes = best_sizes(trees, *rest, aim)
    best, chain = (max(some, key=attrgetter(aim)) for some in (sizes, best_sizes(chains, *rest, aim)))
    return BestTree(counts, context, costs, sizes, best, chain, trees.tree(best.nodes, best.depth))


def check_room(backend: Backend, nodes: int) -> None:
    """UsageError if no pass over so many nodes fits after a prompt."""
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
    """Decode the prompts of every spec with a tree of so many children at every node, and count."""
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
    """The levels of a batch of one that were judged up to the last emitted token, by the child accepted there."""
    child = {node: number for number, rank in enumerate(step.draft.tree.topology.ranks) for node in rank.nodes}
    path = step.verdict.path[0, : int(step.round.accepted[0])].tolist()
    counts = [0] * len(step.draft.tree.topology.ranks)
    for node in path:
        counts[child[node]] += 1
    return ChildCounts(int(step.round.tested[0]), tuple(counts))


def costs_at(networks: Networks, spec: RunSpec, context: int, nodes: int, repeat: int) -> tuple[int, Costs]:
    """What a round costs at this length of the context, or the nearest that the models hold; with that length."""
    widths = [width for width in range(1, nodes + 2) if width <= 9 or width % 4 == 1 or width == nodes + 1]
    (length,) = fitting([context], nodes + 1, networks)
    return length, calibrate(networks, [length], widths, repeat, spec.seed, spec=spec).costs(length)


def tree_method(found: BestTree, spec: RunSpec, data: Sequence[str]) -> dict[str, Any]:
    """The tree as the content of a method file."""
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
