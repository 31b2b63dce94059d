"""How much of the memory's bandwidth does the baseline reach? Against what this machine copies and reads, by itself.

    python -m tests.benchmarks.bandwidth [--pair demo@tinyllama-1.1b] [--dtype bfloat16] [--tiers compile,eager]

At batch 1 every step reads all weights but the input embedding, and the keys and values so far: bytes ÷ seconds of a
step is the rate that is reached. That counts what a step needs, so places of the cache that are read in vain do not
count. The rate of the machine is the best of three: sum() over a tensor, copy_() of one into another (read and
written), and a product of a matrix with a vector, which is what a step is made of. All of it in one process: the
machine's rate is measured before, between and after. Weights that fit into the processor's cache can exceed it; the
table says how large they are.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from specbench.backends.native import Native
from specbench.data.prompts import Prompt
from specbench.metrics import Trace
from specbench.spec import BASELINE, RunSpec
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet, listed, middle, say

WIDTH = 16384  # of the matrix; rows follow from the size that is asked for


def rates(gigabytes: float, device: torch.device, repeat: int) -> dict[str, list[float]]:
    """GB/s of every kind of access, `repeat` times."""
    rows = max(1, int(gigabytes * 1e9 / 4 / WIDTH))
    source, target = torch.ones((rows, WIDTH), device=device), torch.empty((rows, WIDTH), device=device)
    vector, size = torch.ones(WIDTH, device=device), source.numel() * 4 / 1e9
    calls: dict[str, tuple[Callable[[], object], float]] = {
        "sum": (source.sum, size),
        "copy": (lambda: target.copy_(source), 2 * size),
        "matrix · vector": (lambda: torch.mv(source, vector), size),
    }
    timed = {name: harness.seconds_of(call, device) for name, (call, _) in calls.items()}
    found = harness.in_turns(timed, repeat)
    return {name: [moved / seconds for seconds in found[name]] for name, (_, moved) in calls.items()}


def weight_bytes(network: Any) -> int:
    """Bytes of weights that a step reads: all but the input embedding, unless it is the head, too."""
    embedding, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    skipped = 0 if embedding.data_ptr() == head.data_ptr() else embedding.nbytes
    return sum(weight.nbytes for weight in network.parameters()) - skipped


def cache_bytes(network: Any) -> int:
    """Bytes of keys and values per token of context."""
    config = network.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head * int(network.dtype.itemsize)


def arm(native: Native, spec: RunSpec, tier: str, longest: int) -> Callable[[Prompt], Trace]:
    """The baseline in one tier."""
    say(f"preparing: {tier}")
    decode = native.prepare(spec.with_(tier=tier), longest)
    return lambda prompt: decode([prompt.ids], [0])[0]


def row(tier: str, traces: list[Trace], prompts: list[Prompt], network: Any, best: float) -> dict[str, Any]:
    """The line of a tier: the mean step, what it reads, and how fast."""
    steps, seconds = sum(len(t.rounds) for t in traces), sum(t.seconds for t in traces)
    verify = sum(t.spans.get("verify", 0.0) for t in traces)
    context = sum(len(t.rounds) * (len(p.ids) + len(t.tokens) / 2) for t, p in zip(traces, prompts, strict=True))
    moved = weight_bytes(network) + cache_bytes(network) * context / steps
    return {
        "tier": tier,
        "tokens/s": steps / seconds,
        "step ms": 1000 * seconds / steps,
        "pass ms": 1000 * verify / steps,
        "weights MB": weight_bytes(network) / 1e6,
        "cache MB": cache_bytes(network) * context / steps / 1e6,
        "GB/s of a step": moved * steps / seconds / 1e9,
        "GB/s of its pass": moved * steps / verify / 1e9,
        "share of the machine's": moved * steps / seconds / 1e9 / best,
        "share, pass alone": moved * steps / verify / 1e9 / best,
    }


def measure(bench: Bench) -> list[Sheet]:
    """The tiers of one target in one dtype."""
    args = bench.args
    spec = harness.spec_of(bench, method=BASELINE, k=0)
    say("measuring the machine")
    machine = rates(args.gigabytes, bench.device, args.repeat)
    pairs = harness.natives(spec, listed(args.tiers))
    first = next(iter(pairs.values()))
    prompts = harness.prompts_for(first, spec)
    longest = max(len(prompt.ids) for prompt in prompts)
    arms = {tier: arm(native, spec, tier, longest) for tier, native in pairs.items()}
    half = len(prompts) // 2
    traces = harness.interleaved(arms, prompts[:half], 1, args.seed)
    for name, values in rates(args.gigabytes, bench.device, args.repeat).items():
        machine[name] += values
    for tier, more in harness.interleaved(arms, prompts[half:], 0, args.seed).items():
        traces[tier] += more
    for name, values in rates(args.gigabytes, bench.device, args.repeat).items():
        machine[name] += values
    best = max(median(values) for values in machine.values())
    about = f"{args.pair}, {args.dtype}, {len(prompts)} prompts, {args.new} new tokens"
    network = first.network("target")
    rows = [row(tier, found, prompts, network, best) for tier, found in traces.items()]
    return [
        Sheet(
            f"The machine, {args.gigabytes:g} GB of float32",
            [{"access": name, "GB/s: median (least – most)": middle(values)} for name, values in machine.items()],
        ),
        Sheet(about, rows, [f"share of the machine's: of {best:.4g} GB/s, the best median of the table above"]),
    ]


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo@llama-300m", prompts=6, new=48)
    options.add_argument("--tiers", help="(compile,eager; on a GPU graph,eager)")
    options.add_argument("--gigabytes", type=float, help="of each of two tensors that are read (1.5; on a GPU 16)")
    options.add_argument("--repeat", type=int, default=5, help="how often, three times (5)")
    bench = harness.begin("bandwidth", "Bandwidth reached by the baseline", options.parse_args())
    bench.publish(measure(bench))


if __name__ == "__main__":
    main()
