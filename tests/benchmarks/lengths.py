"""Does a token's cost grow linearly with the context, and with nothing hidden behind it? From 512 to 32k places.

    python -m tests.benchmarks.lengths [--tier compile] [--k 4] [--contexts 512,1024,...,32768] [--save FILE]

A small Llama with random weights and 32k positions, drafted for by itself, is put behind contexts of every length,
which are not read in but taken as read: attention costs the same whatever the keys are. Then some rounds are timed at
every length, the lengths in random order, again and again. The second table writes longer and longer outputs behind a
short prompt. Fitted to the medians: a line, and a line with a quadratic term, both in relative terms; what the term
contributes at the greatest length is printed, with its error. A share within two errors of zero is none.

The compiled tier reads a number of places that is a power of two, so that its cost is a staircase: compare the costs at
the steps themselves, which the default lengths do (a context of n stands for one that ends with its last round).
"""

import math
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.backends.native import Native, open_pair
from specbench.decoding.decode import begin as context_of
from specbench.decoding.decode import buffer_length, decode
from specbench.decoding.randomness import seeded
from specbench.models.checkpoints.description import load_tokenizer
from specbench.models.checkpoints.names import resolve
from specbench.spec import BASELINE, RunSpec
from tests.benchmarks.harness import Bench, Sheet, begin, middle, numbers, parser, say

ROUNDS, WARM = 16, 4  # a round in flight does not know yet how far the context reaches
SHORT = 8  # tokens of the prompt before longer and longer outputs


@dataclass(frozen=True)
class Fit:
    """Milliseconds against thousands of tokens: a + b·n, and the share of c·n² in a + b·n + c·n² at the greatest n."""

    start: float
    slope: float
    worst: float
    share: float
    error: float


def fit(lengths: Sequence[int], milliseconds: Sequence[float]) -> Fit:
    """Least squares of relative errors; the error of the share is that of least squares, NaN for three lengths."""
    n, cost = np.asarray(lengths) / 1000, np.asarray(milliseconds)
    weights = 1 / cost
    slope, start = np.polyfit(n, cost, 1, w=weights)
    powers = np.vander(n, 3) * weights[:, None]
    found, *_ = np.linalg.lstsq(powers, np.ones(len(n)), rcond=None)
    left = float(((powers @ found - 1) ** 2).sum()) / (len(n) - 3) if len(n) > 3 else math.nan
    error = float(np.sqrt(left * np.linalg.inv(powers.T @ powers)[0, 0]))
    last = float(np.polyval(found, n[-1]))
    scale = float(n[-1]) ** 2 / last
    worst = float(np.abs((slope * n + start) / cost - 1).max())
    return Fit(float(start), float(slope), worst, float(found[0]) * scale, error * scale)


def save_model(folder: Path, positions: int, hidden: int, layers: int, vocabulary: int = 0, seed: int = 0) -> str:
    """A Llama with random weights and the tokenizer of the shipped pair; `vocabulary`: another than the tokenizer's."""
    tokenizer = load_tokenizer(resolve("demo"))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary or len(tokenizer), hidden_size=hidden, intermediate_size=3 * hidden,
        num_hidden_layers=layers, num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64,
        max_position_embeddings=positions, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def behind(native: Native, spec: RunSpec, longest: int) -> Callable[[int], float]:
    """Milliseconds per token of some rounds behind a context of the length that is given."""
    arm, new = native.arm(spec, longest), spec.max_new_tokens
    clock, method, rounds, room = arm.clock, arm.method, arm.rounds, arm.method.drafter.room

    def measure(length: int) -> float:
        room_for = rounds.length or buffer_length(length, new, room)
        context = rounds.begin(context_of([[1, 1]], new, room, [], native.device, room_for))
        method.start(context)  # the caches
        start = length - new - 2
        context.pos += start
        context.last += start
        left, rng = new, seeded([0], native.device)
        for _ in range(WARM):
            left = rounds.advance(left, rng)
        clock.start()
        for _ in range(ROUNDS):
            left = rounds.advance(left, rng)
        seconds, _ = clock.stop()
        return 1000 * seconds / sum(counts[0].emitted for counts in rounds.counts()[WARM:])

    return measure


def written(native: Native, spec: RunSpec, longest: int) -> Callable[[int], float]:
    """Milliseconds per token of an output of the length that is given, behind a short prompt."""
    arm = native.arm(spec.with_(max_new_tokens=longest), SHORT)

    def measure(length: int) -> float:
        rng, to = seeded([0], native.device), {"device": native.device, "clock": arm.clock, "rounds": arm.rounds}
        (trace,) = decode(arm.method, [list(range(1, SHORT + 1))], new=length, eos=[], rng=rng, **to)
        return 1000 * trace.seconds / len(trace.tokens)

    return measure


def table(title: str, lengths: Sequence[int], arms: dict[str, Callable[[int], float]], repeat: int, seed: int) -> Sheet:
    """Time all arms at all lengths, in random order, and fit."""
    order, found = random.Random(seed), {(name, n): list[float]() for name in arms for n in lengths}
    for turn in range(repeat):
        say(f"{title}: {turn + 1} of {repeat}")
        for name, length in order.sample(list(found), len(found)):
            found[name, length].append(arms[name](length))
    rows = [{"tokens": n, **{f"ms/token {name}": middle(found[name, n]) for name in arms}} for n in lengths]
    notes = [line(name, fit(lengths, [median(found[name, n]) for n in lengths])) for name in arms]
    return Sheet(title, rows, notes)


def line(name: str, one: Fit) -> str:
    """A fit in words."""
    error = "of unknown error (too few lengths)" if math.isnan(one.error) else f"± {one.error:.1%}"
    return (
        f"{name}: {one.start:.4g} ms + {one.slope:.3g} ms per 1000 tokens, off by at most {one.worst:.1%}; a quadratic "
        f"term would be {one.share:+.1%} {error} of the cost at the greatest length"
    )


def measure(bench: Bench, folder: Path) -> list[Sheet]:
    args = bench.args
    contexts, outputs = sorted(numbers(args.contexts)), sorted(numbers(args.outputs))
    model = save_model(folder, max(contexts) + 512, args.hidden, args.layers)
    new = (WARM + ROUNDS) * (args.k + 1)
    spec = RunSpec(target=model, draft=model, k=args.k, tier=args.tier, dtype=args.dtype, device=str(bench.device),
                   ignore_eos=True, max_new_tokens=new)  # fmt: skip
    native = open_pair([spec])
    native.load()
    specs = {"baseline": spec.with_(method=BASELINE, k=0), f"chain K={args.k}": spec}
    sheets = []
    for title, lengths, make in (  # the rounds after the warm ones end before `new` tokens are written
        ("Cost against context", contexts, lambda one: behind(native, one, max(contexts) - new)),
        ("Cost against length of output", outputs, lambda one: written(native, one, max(outputs))),
    ):
        say(f"preparing: {title}")
        arms = {name: make(one) for name, one in specs.items()} if lengths else {}
        sheets += [table(f"{title}, {args.tier}", lengths, arms, args.repeat, args.seed)] if lengths else []
    return sheets


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--contexts", default="512,1024,2048,4096,8192,16384,32768", help="lengths")
    options.add_argument("--outputs", default="64,128,256,512,1024", help="lengths; an empty text for none")
    options.add_argument("--tier", default="eager", help="(eager)")
    options.add_argument("--dtype", default="float32", help="(float32)")
    options.add_argument("--k", type=int, default=4, help="lookahead of the chain (4)")
    options.add_argument("--hidden", type=int, default=256, help="size of the model, a multiple of 64 (256)")
    options.add_argument("--layers", type=int, default=4, help="(4)")
    options.add_argument("--repeat", type=int, default=7, help="how often (7)")
    bench = begin("lengths", "Cost of a token against lengths", options.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        bench.publish(measure(bench, Path(folder)))


if __name__ == "__main__":
    main()
