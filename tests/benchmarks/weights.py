"""How fast compiled rounds are by the dtype of a target and by how its weights are quantised, all in turns.

    python -m tests.benchmarks.weights [--pair demo:] [--method prompt-lookup] [--k 4] [--new 96] [--turns 7]
        [--kinds float32,bfloat16,bfloat16:int8,bfloat16:int4] [--save FILE]

Milliseconds of a baseline step and of a round of the method (median, least – most); their ratio, which is v(K) and what
drafting by lookup costs; and how much faster both are than those of the first kind, by turns. A kind that is a GGUF
file is decoded by llama.cpp without a draft, as its lookups draft in other rounds. `float32@torch` has the attention of
torch instead of our operator.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

from specbench.backends.choose import backend_for
from specbench.backends.engines.install import LLAMA_CPP
from specbench.metrics import Trace
from specbench.models.checkpoints.names import GGUF
from specbench.models.network import attention
from specbench.spec import BASELINE, RunSpec
from tests.benchmarks.harness import Bench, Sheet, begin, in_turns, listed, middle, parser, say

TORCH = "@torch"
PROMPT = [5, 6, 7, 8] * 8
Decode = Callable[[list[list[int]], list[int]], list[Trace]]


def arms_of(bench: Bench, kind: str) -> dict[str, Decode]:
    """The baseline and the method on a target of one kind, compiled; of another engine the baseline."""
    args, (target, _, draft) = bench.args, bench.args.pair.partition(":")
    say(f"{kind}: made ready")
    common = {"ignore_eos": True, "max_new_tokens": args.new}
    if kind.endswith(GGUF):
        specs = {"baseline": RunSpec(target=kind, method=BASELINE, k=0, backend=LLAMA_CPP, **common)}
    else:
        dtype, _, quantize = kind.removesuffix(TORCH).partition(":")
        spec = RunSpec(target=target, draft=draft or None, method=args.method, k=args.k, dtype=dtype, tier="compile",
                       quantize=quantize or None, **common)  # fmt: skip
        specs = {"baseline": spec.baseline, "method": spec}
    backend = backend_for([*specs.values()])
    backend.load(len(PROMPT))
    with patch.object(attention, "by_operator", lambda *_: False) if kind.endswith(TORCH) else nullcontext():
        return {name: backend.prepare(one, len(PROMPT)) for name, one in specs.items()}


def milliseconds(decode: Decode) -> float:
    """Of a round, over one text."""
    (trace,) = decode([PROMPT], [0])
    return 1e3 * trace.seconds / len(trace.rounds)


def measured(bench: Bench) -> dict[str, dict[str, list[float]]]:
    """By kind and arm, the milliseconds of every turn."""
    arms = {kind: arms_of(bench, kind) for kind in listed(bench.args.kinds)}
    calls = {(kind, name): partial(milliseconds, arm) for kind, both in arms.items() for name, arm in both.items()}
    times = in_turns(calls, bench.args.turns, bench.args.seed)
    return {kind: {name: times[kind, name] for name in both} for kind, both in arms.items()}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--pair", default="demo:", help="(demo:)")
    options.add_argument("--method", default="prompt-lookup", help="(prompt-lookup)")
    options.add_argument("--k", type=int, default=4, help="(4)")
    options.add_argument("--new", type=int, default=96, help="tokens of a text (96)")
    options.add_argument("--turns", type=int, default=7, help="(7)")
    options.add_argument("--kinds", default="float32,bfloat16,bfloat16:int8,bfloat16:int4", help="(four kinds)")
    bench = begin("weights", "Compiled rounds by the type of weights", options.parse_args())
    times = measured(bench)
    first = next(iter(times.values()))
    rows = [
        {
            "weights": f"llama.cpp, {Path(kind).stem}" if kind.endswith(GGUF) else kind.replace(":", ", "),
            **{f"{name}, ms": middle(values) for name, values in arms.items()},
            **({"method ÷ baseline": middle(divided(arms["method"], arms["baseline"]))} if "method" in arms else {}),
            **{f"{name} against the first": middle(divided(first[name], values)) for name, values in arms.items()},
        }
        for kind, arms in times.items()
    ]
    note = f"{bench.args.method}, K = {bench.args.k}, texts of {bench.args.new} tokens, {bench.args.turns} turns"
    bench.publish([Sheet(bench.args.pair.partition(":")[0], rows, [note])])


def divided(some: list[float], others: list[float]) -> list[float]:
    return [a / b for a, b in zip(some, others, strict=True)]


if __name__ == "__main__":
    main()
