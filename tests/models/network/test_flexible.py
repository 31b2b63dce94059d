"""Attention that divides keys on a GPU: the same numbers as ours, and ours wherever nothing is compiled."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.errors import UsageError
from specbench.models.checkpoints.divided import How
from specbench.models.network import attention
from specbench.models.network.attention import (
    FLEX,
    NAME,
    divided_on_gpu,
    fitting,
    flexible_attention,
    grouped_attention,
)
from specbench.models.network.passes import additive
from tests.support.families import CONFIGS

MODULE: Any = SimpleNamespace(num_key_value_groups=2, is_causal=True)
KEYS, LAST = 2304, ((2290, 2291, 2292, 2299), (40, 41, 41, 300))


def states(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 6, 4, 16), (2, 3, KEYS, 16), (2, 3, KEYS, 16))
    query, key, value = (torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes)
    return query, key, value


def mask(dtype: torch.dtype, window: int = KEYS) -> Tensor:
    slot, last = torch.arange(KEYS), torch.tensor(LAST).unsqueeze(-1)
    return additive(((slot <= last) & (slot > last - window)).unsqueeze(1), dtype)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize("window", [KEYS, 50])
def test_it_is_attention_over_ragged_rows_and_windows(dtype: torch.dtype, error: float, window: int) -> None:
    query, key, value = states(dtype)
    ours, _ = grouped_attention(MODULE, query, key, value, mask(dtype, window), scaling=0.3)
    assert torch.allclose(divided_on_gpu(query, key, value, mask(dtype, window), 0.3).transpose(1, 2), ours, atol=error)


def test_what_is_not_compiled_is_left_to_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "divided_on_gpu", lambda *_: pytest.fail("it would be slow"))
    query, key, value = states(torch.float32)
    given = mask(torch.float32)
    ours, _ = grouped_attention(MODULE, query, key, value, given, scaling=0.3)
    assert torch.equal(flexible_attention(MODULE, query, key, value, given, scaling=0.3)[0], ours)


def test_it_is_for_few_queries_over_many_keys_with_a_mask_that_is_added() -> None:
    query, key, _ = states(torch.float32)
    given = mask(torch.float32)
    assert fitting(query, key, given)
    assert not fitting(query, key[:, :, :2000], given[..., :2000])
    assert not fitting(query.repeat(1, 1, 17, 1), key, given.repeat(1, 1, 17, 1))
    assert not fitting(query, key, given >= 0)
    assert not fitting(query, key, given[..., :0])
    assert not fitting(query, key, None)


def test_it_is_asked_for_by_name_where_an_architecture_takes_it() -> None:
    configs = {name: kind(**shape) for name, (kind, shape) in CONFIGS.items() if name in ("llama", "gemma2")}
    assert How(attention="flex").attention_of(configs["llama"]) == FLEX
    assert How().attention_of(configs["llama"]) == NAME
    with pytest.raises(UsageError, match=r"--attn-implementation flex: .* and flex where"):
        How(attention="flex").attention_of(configs["gemma2"])


@pytest.mark.slow
@torch.no_grad()
def test_compiled_it_is_the_same() -> None:
    query, key, value = states(torch.float32)
    given = mask(torch.float32)
    ours, _ = grouped_attention(MODULE, query, key, value, given, scaling=0.3)
    call = lambda: flexible_attention(MODULE, query, key, value, given, scaling=0.3)[0]  # noqa: E731
    assert torch.allclose(torch.compile(call, fullgraph=True)(), ours, atol=1e-6)
