"""What a shared cache saves: verification after a draft by the first layers, with two caches and with one.

    python -m tests.benchmarks.early_exit [--layers 12] [--hidden 768] [--share 25] [--repeat 30]

On a random Llama in float32. Both are timed in turns on the same text; medians, in units of one step of the network,
with the quartiles of the paired ratio. Nothing is saved where a pass over K + 1 tokens costs hardly more than over one.
"""

import argparse
import time
from statistics import median, quantiles
from typing import Any

import torch
import transformers as hf

from specbench.decoding.decode import begin
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.models.network.attention import NAME
from specbench.models.network.causal import Causal
from specbench.models.network.early_exit import pair
from specbench.models.network.law import Law
from specbench.models.network.layers import with_layers

CPU, VOCAB, PROMPT, WARMUP = torch.device("cpu"), 4096, 256, 3


def network(layers: int, hidden: int) -> Any:
    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=4 * hidden * 2 // 3, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, max_position_embeddings=1024,
    )  # fmt: skip
    return hf.AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval().requires_grad_(False)


def timed(models: tuple[Any, Any], k: int) -> tuple[float, float]:
    """Seconds of a draft of k tokens and of the pass that verifies it."""
    judge, draft = models
    context = begin([list(range(PROMPT))], k + 1, k, [], CPU)
    if judge.cache is None:
        judge.start(context)
        draft.start(context)
    begun = time.perf_counter()
    ids, _ = draft.sample(context, k, seeded([0], CPU))
    drafted = time.perf_counter()
    judge.probs(context, TokenTree.chain(ids))
    return drafted - begun, time.perf_counter() - drafted


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("layers", 12), ("hidden", 768), ("share", 25), ("repeat", 30)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    net, law = network(asked.layers, asked.hidden), Law(0)
    depth = asked.layers * asked.share // 100
    print(f"{asked.layers} layers of {asked.hidden}, exit after {depth}, {torch.get_num_threads()} threads")
    for k in (1, 4, 8, 16):
        apart = Causal(net, law, VOCAB), Causal(with_layers(net, range(depth)), law, VOCAB)
        arms = {"apart": apart, "shared": pair(Causal(net, law, VOCAB), depth), "step": (Causal(net, law, VOCAB),) * 2}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
        with torch.inference_mode():
            for _ in range(WARMUP + asked.repeat):
                for name, models in arms.items():
                    times[name].append(timed(models, k if name != "step" else 1))
        draft, verify = ({name: [t[i] for t in ts[WARMUP:]] for name, ts in times.items()} for i in (0, 1))
        step = median(draft["step"])
        ratio = quantiles([s / a for s, a in zip(verify["shared"], verify["apart"], strict=True)], n=4)
        print(
            f"K {k:2}: v {median(verify['apart']) / step:.3f} apart, {median(verify['shared']) / step:.3f} shared, "
            f"ratio {ratio[1]:.3f} [{ratio[0]:.3f}, {ratio[2]:.3f}]; draft {median(draft['apart']) / step:.3f}, "
            f"{median(draft['shared']) / step:.3f}"
        )


if __name__ == "__main__":
    main()
