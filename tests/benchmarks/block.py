"""How much more block verification accepts than token by token, on the same drafts.

    python -m tests.benchmarks.block [--pair demo:demo-draft] [--dataset code] [--k 2,4,8]

Two decodes that draw for themselves differ by more than the rules do. Here one decode is sampled, and in each of its
rounds the expected number of accepted tokens of the draft is computed for both rules from the same rows, in closed
form: token by token Σᵢ Πⱼ≤ᵢ min(1, pⱼ/qⱼ), as a block Σᵢ (1 − Πⱼ≥ᵢ (1 − hⱼ)) with the hⱼ of `decoding/block`. Intervals
of the ratio of totals are over prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specbench.backends.native import Native, open_pair
from specbench.data.prompts import Prompt
from specbench.decoding.decode import decode
from specbench.decoding.protocols import Judged
from specbench.decoding.randomness import Source
from specbench.decoding.types import Draft, Verdict, acceptance
from specbench.decoding.verifiers.block import chances, weights
from specbench.decoding.verifiers.rejection import Rejection, drawn_from, exists
from specbench.results.statistics import ratio_of_totals
from specbench.spec import RunSpec
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, between, prompts_for, spec_of


@dataclass
class Watched:
    """Rejection, and what both rules would accept of every draft in the mean."""

    lossless: bool = True
    judges: Judged = "trees"
    by_token: list[float] = field(default_factory=list)
    as_block: list[float] = field(default_factory=list)

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if draft.tree.size:
            (rank,) = draft.tree.topology.ranks
            q, valid = drawn_from(draft, rank, p), exists(draft, rank, p)
            ratio = acceptance(p[:, :-1], q, draft.tree.ids) * valid
            self.by_token.append(float(ratio.clamp_max(1).cumprod(1).sum()))
            missed = (1 - chances(p, q, weights(ratio), valid)).flip(1).cumprod(1)
            self.as_block.append(float((1 - missed).sum()))
        return Rejection().judge(p, draft, rng)


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo:demo-draft", prompts=16, new=64)
    options.add_argument("--k", type=harness.numbers, default=[2, 4, 8], help="lookaheads (2,4,8)")
    options.set_defaults(dtype="float32")
    bench = harness.begin("block", "Block verification against token by token", options.parse_args())
    spec = spec_of(bench, temperature=1.0, k=max(bench.args.k))
    native = open_pair([spec])
    native.load()
    prompts = prompts_for(native, spec)
    rows = [row(native, spec.with_(k=k), prompts) for k in bench.args.k]
    bench.publish([Sheet(f"{bench.args.pair}, {spec.dataset}, temperature 1, {len(prompts)} prompts", rows)])


@torch.inference_mode()
def row(native: Native, spec: RunSpec, prompts: Sequence[Prompt]) -> dict[str, object]:
    """Totals over the prompts for one lookahead."""
    totals: list[tuple[float, float]] = []
    to: Any = {"new": spec.max_new_tokens, "eos": [], "device": native.device}
    for number, prompt in enumerate(prompts):
        watched = Watched()
        method = replace(native.method(spec), verifier=watched)
        decode(method, [prompt.ids], rng=native.source(spec, [number]), **to)
        totals.append((sum(watched.as_block), sum(watched.by_token)))
    ratio = ratio_of_totals([block for block, _ in totals], [token for _, token in totals])
    return {"K": spec.k, "accepted, block ÷ token by token": between(ratio)}


if __name__ == "__main__":
    main()
