"""Our attention of grouped queries against transformers' own: the same numbers, with and without a mask."""

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specbench.models.network.attention import grouped_attention


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
