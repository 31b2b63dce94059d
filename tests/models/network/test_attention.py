"""Our attention: the same numbers as transformers' own, as the definition, and in parts."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specbench.decoding.tokens import TokenTree
from specbench.models.execution.compiled import settings
from specbench.models.execution.region_code import Regional, Regions, Store
from specbench.models.execution.regions import trace
from specbench.models.network import attention
from specbench.models.network.attention import grouped_attention, in_parts, parts_of
from specbench.models.network.causal import Causal
from specbench.models.network.passes import additive
from specbench.models.network.sampling import Sampling
from specbench.theory import roofline
from tests.support.tiers import NEEDS_COMPILER, never
from tests.support.tiny import context_of, network
from tests.support.toys import CPU


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("masked", [True, False])
def test_grouped_attention_equals_the_one_of_transformers(queries: int, groups: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, keys, length, size = 3, 2, 7, 8
    query = torch.randn(rows, keys * groups, queries, size, dtype=torch.float64, generator=generator)
    key, value = torch.randn(2, rows, keys, length, size, dtype=torch.float64, generator=generator)
    mask = torch.rand(rows, 1, queries, length, generator=generator) < 0.6 if masked else None
    if mask is not None:
        mask[..., 0] = True  # a query sees at least something
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=queries == length)
    ours, _ = grouped_attention(module, query, key, value, mask, scaling=0.3)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert torch.allclose(ours, theirs, atol=1e-14, rtol=0)


V = 5
HISTORY = [0, 1, 2, 2, 4, 3, 1, 0, 2, 3, 3, 1, 4, 4, 0, 1, 2, 1, 1, 3]


def states(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_definition(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = query.double() @ key.double().mT * scale
    return (scores if mask is None else scores + mask.double()).softmax(-1) @ value.double()


def hidden(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as passes have it."""
    return additive(seen[None, None], dtype)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [60, 61])
@pytest.mark.parametrize("kind", ["none", "ragged", "window", "one for all"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_parts_together_are_the_whole(count: int, length: int, kind: str, dtype: torch.dtype, error: float) -> None:
    query, key, value = states(1, 2, 4, 16), states(1, 2, 80, 16, seed=1), states(1, 2, 80, 16, seed=2)
    query, key, value = query.to(dtype), key.to(dtype)[:, :, :length], value.to(dtype)[:, :, :length]
    slot, last = torch.arange(length), torch.tensor([[9], [30], [31], [59]])
    seen = {"ragged": slot <= last, "window": (slot <= last) & (slot > last - 7), "one for all": slot[None] < 20}
    mask = None if kind == "none" else hidden(seen[kind], dtype)
    found = in_parts(query, key, value, mask, 0.3, count)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), by_definition(query, key, value, mask, 0.3), atol=error, rtol=error)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("length", [60, 61])
@pytest.mark.parametrize("shared", [True, False])
def test_parts_of_several_rows_are_the_whole(count: int, length: int, shared: bool) -> None:
    query, key, value = states(3, 2, 4, 16), states(3, 2, 80, 16, seed=1), states(3, 2, 80, 16, seed=2)
    key, value = key[:, :, :length], value[:, :, :length]
    slot, last = torch.arange(length), torch.tensor([[9, 9, 10, 12], [30, 31, 31, 40], [59, 57, 58, 59]])
    mask = additive((slot <= last[:1, :, None] if shared else slot <= last[..., None])[:, None], torch.float64)
    found = in_parts(query, key, value, mask, 0.3, count)
    assert torch.allclose(found, by_definition(query, key, value, mask, 0.3), atol=1e-14)


def test_a_prediction_divides_keys_where_rounds_do() -> None:
    assert (attention.LONG["cuda"], attention.PART["cuda"]) == (roofline.LONG, roofline.PART)


@pytest.mark.parametrize(
    ("rows", "heads", "keys", "count"),
    [(1, 32, 4096, 8), (1, 32, 16384, 8), (1, 8, 16384, 32), (4, 32, 4096, 2), (8, 64, 4096, 1), (1, 32, 4100, 1),
     (1, 8, 2176, 8)],
)  # fmt: skip
def test_a_gpu_divides_keys_into_equal_parts_for_all_its_blocks(rows: int, heads: int, keys: int, count: int) -> None:
    assert parts_of(rows, heads, keys, 264, "cuda") == count


@pytest.mark.parametrize(
    ("rows", "heads", "keys", "threads", "count"),
    [(1, 8, 32768, 16, 2), (1, 3, 32768, 2, 2), (1, 1, 32768, 6, 6), (1, 2, 32768, 2, 1), (1, 4, 32768, 6, 3),
     (4, 1, 32768, 8, 1), (1, 1, 2048, 64, 4)],
)  # fmt: skip
def test_every_thread_gets_as_much_as_the_others(rows: int, heads: int, keys: int, threads: int, count: int) -> None:
    assert parts_of(rows, heads, keys, threads) == count


class Calls(TorchDispatchMode):
    """The shapes of queries and keys that attention was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[torch.Size, torch.Size]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "flash_attention_for_cpu" in str(func):
            self.seen.append((args[0].shape, args[1].shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize(("threads", "heads"), [(2, 3), (6, 4)])
@torch.no_grad()
def test_every_key_is_read_once_by_all_queries_of_its_group(
    queries: int, threads: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "workers", lambda _: threads)
    query, key, value = (states(1, n, m, 8) for n, m in ((3 * heads, queries), (heads, 2304), (heads, 2304)))
    mask = (
        None
        if queries == 1
        else hidden(torch.arange(2304) <= 2304 - queries + torch.arange(queries)[:, None], query.dtype)
    )
    module = SimpleNamespace(num_key_value_groups=3, is_causal=True)
    with Calls() as calls:
        found, _ = grouped_attention(module, query, key, value, mask, scaling=0.3)  # type: ignore[arg-type]
    assert sum(keys.numel() for _, keys in calls.seen) == key.numel()
    assert all(asked[2] == 3 * queries and asked[0] * asked[1] % threads == 0 for asked, _ in calls.seen)
    each = (x.repeat_interleave(3, 1) for x in (key, value))
    assert torch.allclose(found.transpose(1, 2), by_definition(query, *each, mask, 0.3), atol=1e-14)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_network_gives_the_same_rows(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TokenTree(torch.tensor([[1, 2, 3, 4]]).expand(rows, -1), (-1, 0, 0, 1))
    found = []
    for long in (10**6, 4):
        monkeypatch.setitem(attention.LONG, "cpu", long)
        monkeypatch.setitem(attention.PART, "cpu", 3)
        monkeypatch.setattr(attention, "workers", lambda _: 4)
        model, context = Causal(network(name, V), Sampling(), V), context_of([HISTORY, HISTORY[:7]][:rows], 8, 2)
        model.start(context)
        with Calls() as calls:
            found.append([model.probs(context, tree), model.probs(context, TokenTree.chain(tree.ids[:, :3]))])
        assert any(asked[1] > 4 or asked[2] > 5 for asked, _ in calls.seen) or long > 4
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(*found, strict=True))


@pytest.mark.slow
@torch.no_grad()
def test_compiled_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "workers", torch.compiler.assume_constant_result(lambda _: 2))
    query, key, value = (states(1, n, m, 8, dtype=torch.float32) for n, m in ((6, 5), (3, 2304), (3, 2304)))
    mask = hidden(torch.arange(2304) <= 2299 + torch.arange(5)[:, None], query.dtype)
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    call = lambda: grouped_attention(module, query, key, value, mask, scaling=0.3)[0]  # type: ignore[arg-type]  # noqa: E731
    assert torch.allclose(torch.compile(call, fullgraph=True)(), call(), atol=1e-6)


# --- operator ---------------------------------------------------------------------------------------------------------

SLOT = torch.arange(70)
LAST = torch.tensor([3, 4, 5, 17, 33, 60, 61, 62, 69])  # what nine queries see last
SEEN = {
    "of a chain": LAST[:, None] >= SLOT,
    "in a window": (LAST[:, None] >= SLOT) & (LAST[:, None] - 5 < SLOT),
    "with holes": (LAST[:, None] >= SLOT) & (SLOT % 3 != 1),
    "without any": (LAST[:, None] >= SLOT) & (LAST[:, None] != 17),
    "of one for all": SLOT[None] <= 20,
}
ERRORS = {torch.float32: 1e-6, torch.bfloat16: 2e-2}


def cached(size: int, dtype: torch.dtype, rows: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B, 3, 9, D], and keys and values [B, 3, 70, D] of a longer cache."""
    key, value = (states(rows, 3, 80, size, dtype=dtype, seed=seed)[:, :, :70] for seed in (1, 2))
    return states(rows, 3, 9, size, dtype=dtype), key, value


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("size", [16, 48, 128])
def test_the_operator_is_attention(size: int, dtype: torch.dtype, seen: str) -> None:
    (query, key, value), mask = cached(size, dtype), hidden(SEEN[seen], dtype)
    attend = attention.operator(size)
    found, wanted = attend(query, key, value, mask, 0.3), by_definition(query, key, value, mask, 0.3)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), wanted, atol=ERRORS[dtype], rtol=ERRORS[dtype])
    for number, own in enumerate(mask.expand(-1, -1, 9, -1).split(1, 2)):  # whatever else is in the pass
        alone = attend(query[:1, :, number : number + 1], key[:1], value[:1], own, 0.3)
        assert torch.equal(alone, found[:1, :, number : number + 1])
    laid_otherwise = query.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(attend(laid_otherwise, key.contiguous(), value, mask.repeat(2, 1, 1, 1), 0.3), found)
    for wrong in (
        (query.mT.contiguous().mT, key, value),
        (query, key.transpose(1, 2).contiguous().transpose(1, 2), value),
    ):
        with pytest.raises(RuntimeError, match="next to each other"):
            attend(*wrong, mask, 0.3)


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", ERRORS)
def test_the_operator_does_not_read_what_is_hidden(dtype: torch.dtype) -> None:
    query, key, value = cached(16, dtype)
    mask, attend = hidden(SEEN["with holes"], dtype), attention.operator(16)
    wanted = attend(query, key, value, mask, 0.3)
    for x in (key, value):
        x[:, :, 1::3] = torch.nan
    assert torch.equal(attend(query[:, :, :1], key, value, mask[:, :, :1], 0.3), wanted[:, :, :1])
    assert torch.equal(attend(query, key, value, mask, 0.3), wanted)


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("groups", [1, 3])
@torch.no_grad()
def test_compiled_rounds_use_the_operator(groups: int) -> None:
    query, (_, key, value) = states(1, 3 * groups, 2, 16, dtype=torch.float32), cached(16, torch.float32, rows=1)
    mask = hidden(SEEN["of a chain"][:2], torch.float32)
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    call = lambda x: grouped_attention(module, x, key, value, mask, scaling=0.3)[0]  # type: ignore[arg-type]  # noqa: E731
    names = [str(node.target) for node in trace(call, query).graph.graph.nodes]
    assert sum("attend16" in name for name in names) == 1
    apart = key.transpose(1, 2).contiguous().transpose(1, 2)  # the slots of a head
    other = lambda x: grouped_attention(module, x, apart, value, mask, scaling=0.3)[0]  # type: ignore[arg-type]  # noqa: E731
    assert torch.allclose(trace(other, query).result, call(query), atol=1e-6)
    compiled = Regional(call, Regions(Store(settings(CPU))), never)
    assert torch.equal(compiled(query), compiled(query))
    assert torch.allclose(compiled(query), call(query), atol=1e-6)


def test_without_a_compiler_compiled_rounds_use_torchs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "missing_compiler", lambda: "there is none")
    monkeypatch.setattr(attention, "operator", cache(attention.operator.__wrapped__))
    query, key, value = cached(16, torch.float32)
    mask = hidden(SEEN["of a chain"], torch.float32)
    with torch.no_grad():
        recorded = trace(lambda x: grouped_attention(None, x, key, value, mask, scaling=0.3)[0], query).graph  # type: ignore[arg-type]
    names = [str(node.target) for node in recorded.graph.nodes]
    assert any("flash_attention" in name for name in names)
    assert not any("attend" in name for name in names)
