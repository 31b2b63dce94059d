"""A compiled round of a GPU, as dynamo traces it: one graph, and every node of it on the GPU.

Networks, cache and context are fake tensors of `cuda:0`: they have shapes and no numbers, so no code is made or run.
A tensor of the CPU in a round would be copied at every replay, which no capture allows.
"""

import ctypes
from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from transformers import LlamaForCausalLM

from specbench.decoding import tokens
from specbench.decoding.decode import begin
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import learners, needs
from specbench.decoding.methods import build
from specbench.decoding.randomness import FromUniforms
from specbench.decoding.rounds import Play, state
from specbench.decoding.types import packed
from specbench.models.checkpoints.description import attention
from specbench.models.execution.compiled import unshared
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.checkpoints import llama
from tests.support.fakecuda import missing
from tests.support.fakecuda.installed import guard
from tests.support.tiers import NAMES

PLACES = ("simulated",)
GPU, LENGTH = torch.device("cuda:0"), 256
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def network(layers: int) -> Any:
    config = llama(num_hidden_layers=layers, max_position_embeddings=LENGTH)
    config._attn_implementation = attention(config)
    with GPU:
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def method_of(name: str, law: Sampling) -> Speculate:
    """A method of K = 2 on networks of two layers and one, their caches in place."""
    models = {role: Causal(network(1 + (role == "target")), law, 64, True) for role in needs(name) | {"target"}}
    return build(name, models, 2)


def round_of(name: str, temperature: float) -> Play:
    """A round of a method as a function of objects at fixed addresses, as `Whole` prepares it."""
    law = Sampling(temperature=temperature)
    method = method_of(name, law)
    context = begin([[0, 0]], 1, method.drafter.room, [1], GPU, LENGTH)
    method.start(context)

    def uniforms(shape: tuple[int, ...], stream: object) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=GPU)

    source = FromUniforms(uniforms, law.certain)

    def play() -> tuple[Tensor, Tensor]:
        done = method.advance(context, None, source).round
        return state(context), packed(done)

    return play


def laid_out(model: Causal, context: Any) -> None:
    """Prefill a cache without reading lengths, which fake tensors do not have."""
    heads, size = model.config.num_key_value_heads, model.config.hidden_size // model.config.num_attention_heads
    model.cache = RowStaticCache(model.config.num_hidden_layers, LENGTH, model.memory)
    for layer in model.cache.rows:
        states = torch.zeros((context.rows, heads, 1, size), device=GPU)
        layer.lazy_initialization(states, states)


def devices_of(play: Play) -> list[Counter[str]]:
    """The devices of the nodes that dynamo traces, graph by graph."""
    graphs: list[Counter[str]] = []

    def look(module: GraphModule, inputs: Any) -> Any:
        values = (node.meta.get("example_value") for node in module.graph.nodes)
        graphs.append(Counter(value.device.type for value in values if isinstance(value, Tensor)))
        return module.forward

    torch._dynamo.reset()
    torch.compile(unshared(play), fullgraph=True, dynamic=False, backend=look)()
    return graphs


READ = ("recycling",)  # its start reads the prompt's tokens, and fake tensors have none
WHOLE = [name for name in NAMES if "demo" not in name and not learners(name) and name not in READ]
# Some methods: test_simulated.py captures all of them, where an operand of the CPU is refused.
CASES = quick_or_slow(
    dict.fromkeys([*product(["chain", "tree-top"], [0.0, 1.0]), *product(WHOLE[::4], [0.0])]),
    lambda *case: case == ("tree-top", 0.0),
)


@pytest.mark.parametrize(("method", "temperature"), CASES)
def test_no_node_lies_on_the_cpu(method: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    path = guard()
    assert path is not None
    ctypes.CDLL(str(path))
    monkeypatch.setattr(Causal, "start", laid_out)
    monkeypatch.setattr(tokens, "sent", lambda data, device: data.to(device))  # fake tensors cannot be pinned
    tokens.kept.cache_clear()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            play = round_of(method, temperature)
            play()  # whatever is made once
            found = devices_of(play)
    finally:
        tokens.kept.cache_clear()
    assert [set(one) for one in found] == [{"cuda"}]
    assert found[0]["cuda"] > 100
