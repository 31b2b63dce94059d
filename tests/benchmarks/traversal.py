"""How many more tokens a round emits where trees are judged from their leaves up, on the same drafts; the best tree.

    python -m tests.benchmarks.traversal [--pair demo:demo-draft] [--dataset code] [--nodes 2,4,6,8,12]

Two decodes that draw for themselves differ by more than the rules do. Here one decode is sampled, and in each of its
rounds the expected number of accepted tokens of the draft is computed for both rules from the rows of that draft, in
closed form: from the root down Σ over nodes of the chance that all of its path is accepted, from the leaves up Σ over
nodes of their depth times the chance that the walk ends there. Intervals of the ratio are over prompts.

First the trees that ship; then, for every number of nodes, the best tree and the best chain by Sequoia's dynamic
programme, whose acceptances are those of the rule from the root down: whether another size is best for `Traversal`. On
a chain the two rules are block verification and token by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specbench.backends.native import Native, open_pair
from specbench.data.prompts import Prompt
from specbench.decoding.decode import decode
from specbench.decoding.drafters.tree import Distinct, Planned
from specbench.decoding.protocols import Drafter, Judged
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT, constant
from specbench.decoding.types import Draft, Verdict, acceptance
from specbench.decoding.verifiers.block import lightened, planned, weighed
from specbench.decoding.verifiers.rejection import Rejection, of_rank, siblings
from specbench.measure.search import count_children
from specbench.results.statistics import ratio_of_totals
from specbench.spec import RunSpec
from specbench.theory.optimum import Search
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, between, prompts_for, spec_of

METHODS = ("chain", "tree-iid", "tree-distinct", "sequoia", "merge", "tree-top")
CHILDREN, DEPTH = 4, 8  # of the trees that are searched


def from_the_root_down(p: Tensor, draft: Draft) -> float:
    """Expected accepted tokens of this draft by `Rejection`."""
    chance, missed = p.new_zeros(draft.tree.size, dtype=torch.float64), p.new_ones(p.shape[1], dtype=torch.float64)
    for x in siblings(p, draft):
        hit = (acceptance(x.p, x.q, x.ids).clamp_max(1) * x.valid)[0]
        chance[x.nodes] = missed[x.parents] * hit
        missed[x.parents] *= 1 - hit
    reached = [1.0]
    for node, parent in enumerate(draft.tree.parents):
        reached.append(reached[parent + 1] * float(chance[node]))
    return sum(reached[1:])


def from_the_leaves_up(p: Tensor, draft: Draft) -> float:
    """Expected accepted tokens of this draft by `Traversal`."""
    plan = planned(draft.tree.parents)
    weight, left = weighed(p, draft, plan)
    ends = lightened(weight, of_rank(plan.last, left, draft))[0, 1:].clamp_max(1)
    order = constant(plan.visits, p.device)
    missed = torch.cat([ends.new_ones(1), (1 - ends[order]).cumprod(0)])[:-1]
    depths = constant(draft.tree.topology.depths, p.device)
    return float((missed * ends[order] * depths[order]).sum())


@dataclass
class Watched:
    """Rejection, and what both rules accept of every draft in the mean."""

    lossless: bool = True
    judges: Judged = "trees"
    rounds: int = 0
    down: float = 0.0
    up: float = 0.0

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        self.rounds += 1
        if draft.tree.size:
            self.down += from_the_root_down(p, draft)
            self.up += from_the_leaves_up(p, draft)
        return Rejection().judge(p, draft, rng)


@dataclass
class Watching:
    """Decodes prompts with a drafter, and adds up."""

    native: Native
    spec: RunSpec
    prompts: Sequence[Prompt]

    @torch.inference_mode()
    def row(self, name: str, method: str, k: int, drafter: Drafter | None = None) -> dict[str, object]:
        """Both rules on the drafts of a method that ships, or of a drafter of its own in the method's place."""
        spec, totals = self.spec.with_(method=method, k=k), list[Watched]()
        to: Any = {"new": spec.max_new_tokens, "eos": [], "device": self.native.device}
        for number, prompt in enumerate(self.prompts):
            watched, made = Watched(), self.native.method(spec)
            if drafter is not None:
                made = replace(made, drafter=drafter)
            decode(replace(made, verifier=watched), [prompt.ids], rng=self.native.source(spec, [number]), **to)
            totals.append(watched)
        up, down = ([getattr(one, way) for one in totals] for way in ("up", "down"))
        accepted, rounds = between(ratio_of_totals(up, down)), sum(one.rounds for one in totals)
        up, down = ([one.rounds + some for one, some in zip(totals, sums, strict=True)] for sums in (up, down))
        found = {"from the root down": round(sum(down) / rounds, 3), "from the leaves up": round(sum(up) / rounds, 3)}
        return {"drafts": name, **found, "ratio": between(ratio_of_totals(up, down)), "of accepted tokens": accepted}


def parents_of(search: Search, nodes: int) -> tuple[int, ...]:
    """The tree of so many nodes from which most tokens are expected."""
    depths = range(1, min(nodes, DEPTH) + 1)
    return search.tree(nodes, max(depths, key=lambda depth: search.tokens(nodes, depth)))


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo:demo-draft", prompts=16, new=64)
    options.add_argument("--k", type=int, default=4, help="lookahead of the methods that ship (4)")
    options.add_argument("--chains", type=harness.numbers, default=[2, 8], help="other lookaheads of the chain (2,8)")
    options.add_argument(
        "--nodes", type=harness.numbers, default=[2, 4, 6, 8, 12], help="of searched trees (2,4,6,8,12)"
    )
    options.set_defaults(dtype="float32")
    bench = harness.begin("traversal", "Trees judged from the leaves up and from the root down", options.parse_args())
    k = bench.args.k
    spec = spec_of(bench, temperature=1.0, k=max(k, *bench.args.chains, 0))
    native = open_pair([spec.with_(method=name) for name in METHODS])
    native.load()
    watching = Watching(native, spec, prompts_for(native, spec))
    shipped = [watching.row(f"chain, K = {other}", "chain", other) for other in bench.args.chains]
    shipped += [watching.row(name, name, k) for name in METHODS]
    counts = count_children(native, [(spec, watching.prompts)], CHILDREN)
    search = Search.over(counts.acceptance, max(bench.args.nodes), DEPTH)
    searched = []
    for nodes in bench.args.nodes:
        for shape, parents in (("tree", parents_of(search, nodes)), ("chain", tuple(range(ROOT, nodes - 1)))):
            drafter = Planned(native.models(spec)["draft"], parents, Distinct())
            name = f"{shape} of {nodes}: {', '.join(map(str, parents))}"
            searched.append(watching.row(name, "tree-distinct", k, drafter))
    about = f"{bench.args.pair}, {spec.dataset}, temperature 1, {len(watching.prompts)} prompts"
    head = "tokens per round by both rules on the same drafts"
    note = "A tree of point masses (tree-top, and merge's prompt lookup by itself) gains nothing from the rule."
    bench.publish([Sheet(f"{about}: {head}", shipped, [note]), Sheet(f"{about}: Sequoia's trees and chains", searched)])


if __name__ == "__main__":
    main()
