"""The bodies of `specbench tree` and `skip-layers`: searches for what drafts best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from specbench.backends.base import Networks, networks_of
from specbench.data.prompts import Prompt
from specbench.decoding.timing import clock_for
from specbench.errors import UsageError
from specbench.jobs.output import say
from specbench.jobs.progress import load
from specbench.measure import grid
from specbench.measure.calibrate import calibrate, fitting
from specbench.measure.parsing import write_method
from specbench.measure.plan import complete_backend, prompts_of
from specbench.measure.search import (
    BestTree,
    Kept,
    Move,
    Scored,
    SearchPath,
    Written,
    alpha_of_layers,
    best_tree,
    check_room,
    count_children,
    layer_shares,
    name,
    prompts_with_room,
    search,
    timed_costs,
    tree_method,
    written_by,
)
from specbench.models.network.skipping import chosen
from specbench.show.table import print_records
from specbench.show.text import Format
from specbench.spec import BASELINE, RunSpec
from specbench.theory import formulas
from specbench.theory.optimum import Aim, Size

# --- tree -------------------------------------------------------------------------------------------------------------
# The body of `specbench tree`: from settings to printed tables and a method file.


@dataclass(frozen=True)
class TreeSearch:
    """The limits of the tree, the objective, and the number of timings per pass."""

    children: int
    nodes: int
    depth: int
    by: Aim
    repeat: int


def start_tree(
    settings: Mapping[str, Any], search: TreeSearch, output: Path | None, style: Format, quiet: bool
) -> None:
    """Measure a pair, print the result and write the tree to `output` if given."""
    specs = grid.cells(settings)
    err = Console(stderr=True, quiet=quiet)
    found = search_tree(specs, search, err)
    print_records(best_rows(found), tables(found), style)
    if output is not None:
        say(err, [write_method(output, tree_method(found, specs[0], [spec.dataset for spec in specs]))])


def search_tree(specs: Sequence[RunSpec], search: TreeSearch, err: Console) -> BestTree:
    """Find the best tree for the pair of the cells, by acceptance on their prompts and costs on this machine."""
    backend = complete_backend(specs)
    networks = networks_of(backend, "the search for a tree")
    check_room(backend, search.nodes)
    work = [(spec, prompts_with_room(backend, spec, search.children)) for spec in specs]
    counts = {spec: len(prompts) for spec, prompts in work}
    lengths = [len(prompt.ids) for _, prompts in work for prompt in prompts]
    load(backend, specs[0], max(lengths), err)
    children = count_children(
        networks, work, search.children, lambda spec: say(err, [f"{spec.dataset}: decoding {counts[spec]} prompts …"])
    )
    middle = sum(lengths) // len(lengths) + specs[0].max_new_tokens // 2
    say(err, [f"context {middle}: timing passes over up to {search.nodes + 1} tokens …"])
    first = specs[0]
    widths = [
        width for width in range(1, search.nodes + 2) if width <= 9 or width % 4 == 1 or width == search.nodes + 1
    ]
    (length,) = fitting([middle], search.nodes + 1, networks)
    context, costs = length, calibrate(networks, [length], widths, search.repeat, first.seed, spec=first).costs(length)
    return best_tree(children, context, costs, search.nodes, search.depth, search.by)


def tables(found: BestTree) -> dict[str, list[dict[str, Any]]]:
    costs = found.costs
    return {
        f"Which child of a node is accepted (judged at {found.counts.tested} nodes)": [
            {"child": number, "accepted": hits, "chance": round(hits / max(found.counts.tested, 1), 3)}
            for number, hits in enumerate(found.counts.accepted, 1)
        ],
        f"The best tree by its nodes, with costs in baseline steps at a context of {found.context} tokens "
        f"(first level {costs.first:.3f}, later {costs.later:.3f}, overhead {costs.overhead:.3f})": [
            row("", size, costs.verify[size.nodes])
            for size in [size for size in found.trees if size.nodes <= 8 or size.nodes % 4 == 0 or size == found.tree]
        ],
        f"The best; parents: {', '.join(map(str, found.parents))}": best_rows(found),
    }


def best_rows(found: BestTree) -> list[dict[str, Any]]:
    both = (("tree", found.tree), ("chain", found.chain))
    return [row(name, size, found.costs.verify[size.nodes]) for name, size in both]


def row(name: str, size: Size, pass_: float) -> dict[str, Any]:
    return ({"shape": name} if name else {}) | {
        "nodes": size.nodes,
        "depth": size.depth,
        "pass": round(pass_, 3),
        "tokens_per_round": round(size.tokens, 3),
        "cost": round(size.cost, 3),
        "speedup": round(size.speedup, 3),
    }


# --- skip layers ------------------------------------------------------------------------------------------------------

KNOWN = {"early exit 25 %": "[:25%]", "early exit 50 %": "[:50%]", "early exit 75 %": "[:75%]",
         "layer-skip": "[:25%,75%:]"}  # fmt: skip
PAPER = "Draft & Verify, Zhang et al. 2023 (arXiv 2309.08168), with a set of layers found by search"


Halves = tuple[Sequence[Prompt], Sequence[Prompt]]  # searched, held out


@dataclass(frozen=True)
class CheckedSet:
    """A layer set on both halves of the prompts; the searched half chose its lookahead."""

    done: str
    set: Scored
    unseen: float

    @property
    def checked(self) -> float:
        """The predicted speedup on held-out prompts."""
        return formulas.speedup(self.unseen, self.set.k, self.set.c)

    def row(self) -> dict[str, Any]:
        return {
            "step": self.done,
            "layers": name(self.set.kept),
            "kept": len(self.set.kept),
            "alpha": self.set.alpha,
            "c": self.set.c,
            "k": self.set.k,
            "speedup_predicted": self.set.speedup,
            "alpha_held_out": self.unseen,
            "speedup_held_out": self.checked,
        }


@dataclass(frozen=True)
class LayerSearch:
    """The maximum number of scored layer sets, and the source of c."""

    evaluations: int
    cost: Literal["measured", "share"]


def start_skip_layers(
    settings: Mapping[str, Any], search: LayerSearch, output: Path | None, style: Format, quiet: bool
) -> None:
    """Search, print the steps, write the file, and print the conclusion."""
    specs = grid.cells({"method": BASELINE, **settings})
    err = Console(stderr=True, quiet=quiet)
    backend = complete_backend(specs)
    networks = networks_of(backend, "the search for layers")
    depth = networks.depth
    if search.evaluations <= depth:
        raise UsageError(f"--evaluations {search.evaluations}: of {depth} layers it takes {depth + 1} to leave one out")
    if depth < 2:
        raise UsageError(f"{specs[0].target} has one layer: none can be left out")
    prompts = [(spec, halves(prompts_of([spec], backend).prompts, spec)) for spec in specs]
    load(backend, specs[0], max(len(prompt.ids) for _, parts in prompts for half in parts for prompt in half), err)
    with networks.gradless():
        found, trials = search_layers(networks, prompts, depth, search, err)
    print_trials(trials, style)
    best = next(trial for trial in trials if trial.set == found.best)
    predicted = f"{name(best.set.kept)} is predicted to give {best.checked:.2f}× at K {best.set.k} on held-out prompts"
    lines = [f"{found.evaluations} sets scored" + (": --evaluations ended the search" if found.cut else "")]
    pays = best.checked > 1
    say(err, [*lines, predicted if pays else f"no set of layers is predicted to pay: the best, {predicted}"])
    if output is not None:
        say(err, [f"{write_method(output, layers_method(best, specs[0], depth))} --k {best.set.k}"])


def halves(prompts: Sequence[Prompt], spec: RunSpec) -> Halves:
    """Split the prompts alternately into searched and held-out ones."""
    if len(prompts) < 2:
        raise UsageError(f"data set {spec.dataset}: one prompt cannot be searched on and held out: raise --limit to 2")
    return prompts[::2], prompts[1::2]


def search_layers(
    networks: Networks, prompts: Sequence[tuple[RunSpec, Halves]], depth: int, plan: LayerSearch, err: Console
) -> tuple[SearchPath, list[CheckedSet]]:
    """Search, then evaluate its steps and the known sets on both halves."""
    network, sampling = networks.network("target"), networks.sampling(prompts[0][0])
    say(err, [f"decoding {sum(len(a) + len(b) for _, (a, b) in prompts)} prompts with the target …"])
    seen, unseen = ([one for spec, parts in prompts for one in outputs(networks, spec, parts[i])] for i in (0, 1))
    c = layer_costs(networks, prompts[0], depth, plan.cost)

    def score(kept: Kept) -> Scored:
        return Scored(kept, alpha_of_layers(network, kept, seen, sampling), c(len(kept)))

    def watch(number: int, one: Scored) -> None:
        if number % 25 == 0:
            say(err, [f"{number} sets scored (at most {plan.evaluations}), {len(one.kept)} of {depth} layers kept …"])

    found = search(depth, score, plan.evaluations, watch)
    known = [Move(what, score(tuple(chosen(f"target{text}", depth)))) for what, text in KNOWN.items()]

    def checked(move: Move) -> CheckedSet:
        return CheckedSet(move.done, move.set, alpha_of_layers(network, move.set.kept, unseen, sampling))

    return found, [checked(move) for move in (*known, *found.steps)]


def outputs(networks: Networks, spec: RunSpec, prompts: Sequence[Prompt]) -> list[Written]:
    """Target outputs for some prompts, with their distributions."""
    decode = networks.prepare(spec, max(len(prompt.ids) for prompt in prompts))
    network, sampling = networks.network("target"), networks.sampling(spec)
    tokens = [decode([prompt.ids], [spec.seed % 2**63])[0].tokens for prompt in prompts]
    return [written_by(network, p.ids, new, sampling, networks.width) for p, new in zip(prompts, tokens, strict=True)]


def layer_costs(networks: Networks, prompts: tuple[RunSpec, Halves], depth: int, cost: str) -> Callable[[int], float]:
    """c by the number of kept layers."""
    if cost == "share":
        return layer_shares(depth)
    spec, (first, _) = prompts
    source, clock = networks.source(spec, [spec.seed % 2**63]), clock_for(networks.device)
    return timed_costs(networks.network("target"), first[0].ids, networks.sampling(spec), networks.width, source, clock)


def print_trials(trials: Sequence[CheckedSet], style: Format) -> None:
    """Print the known sets and the search steps on stdout."""
    rows = [trial.row() for trial in trials]
    short = [{key: f"{v:.3f}" if isinstance(v, float) else v for key, v in row.items()} for row in rows]
    tables = {
        "known sets; k is the best lookahead up to 8, held out are prompts that were not searched on": short[
            : len(KNOWN)
        ],
        "steps of the search": short[len(KNOWN) :],
    }
    print_records(rows, tables, style)


def layers_method(best: CheckedSet, spec: RunSpec, depth: int) -> dict[str, Any]:
    """The layer set as a method for `specbench run --method`."""
    drafter = {"ModelDrafter": {"model": name(best.set.kept), "k": "k"}}
    summary = (
        f"Self-speculation, a chain from {len(best.set.kept)} of the {depth} layers of {spec.target}, found by "
        f"skip-layers (predicted {best.checked:.2f}× at K {best.set.k})"
    )
    method = {"Speculate": {"drafter": drafter, "model": "target", "verifier": "Rejection"}}
    return {"summary": summary, "paper": PAPER, "lossless": True, "method": method}
