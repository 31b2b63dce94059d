"""The body of `specbench tree`: from settings to printed tables and a method file. May import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.backends.base import networks_of
from specbench.jobs.loading import load
from specbench.jobs.method_file import write_method
from specbench.jobs.output import say
from specbench.measure import grid
from specbench.measure.plan import complete_backend
from specbench.measure.search import (
    BestTree,
    best_tree,
    check_room,
    costs_at,
    count_children,
    prompts_with_room,
    tree_method,
)
from specbench.show.text import Format, print_records
from specbench.spec import RunSpec
from specbench.theory.sequoia import Aim, Size


@dataclass(frozen=True)
class TreeSearch:
    """What the tree may look like, what makes it the best, and how often every pass is timed."""

    children: int
    nodes: int
    depth: int
    by: Aim
    repeat: int


def start(settings: Mapping[str, Any], search: TreeSearch, output: Path | None, style: Format, quiet: bool) -> None:
    """Measure a pair, print what was found and write the tree where `output` says so."""
    specs = grid.cells(settings)
    err = Console(stderr=True, quiet=quiet)
    found = search_tree(specs, search, err)
    print_records(best_rows(found), tables(found), style)
    if output is not None:
        say(err, [write_method(output, tree_method(found, specs[0], [spec.dataset for spec in specs]))])


def search_tree(specs: Sequence[RunSpec], search: TreeSearch, err: Console) -> BestTree:
    """The best tree for the pair of the cells, by acceptance on their prompts and costs on this machine."""
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
    context, costs = costs_at(networks, specs[0], middle, search.nodes, search.repeat)
    return best_tree(children, context, costs, search.nodes, search.depth, search.by)


def tables(found: BestTree) -> dict[str, list[dict[str, Any]]]:
    """For readers."""
    costs = found.costs
    return {
        f"Which child of a node is accepted (judged at {found.counts.tested} nodes)": [
            {"child": number, "accepted": hits, "chance": round(hits / max(found.counts.tested, 1), 3)}
            for number, hits in enumerate(found.counts.accepted, 1)
        ],
        f"The best tree by its nodes, with costs in baseline steps at a context of {found.context} tokens "
        f"(first level {costs.first:.3f}, later {costs.later:.3f}, overhead {costs.overhead:.3f})": [
            row("", size, costs.verify[size.nodes]) for size in listed(found)
        ],
        f"The best; parents: {', '.join(map(str, found.parents))}": best_rows(found),
    }


def listed(found: BestTree) -> list[Size]:
    """Small trees, every fourth of the others, and the best."""
    return [size for size in found.trees if size.nodes <= 8 or size.nodes % 4 == 0 or size == found.tree]


def best_rows(found: BestTree) -> list[dict[str, Any]]:
    """The best tree and the best chain."""
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
