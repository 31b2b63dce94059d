"""Attention under masks that are added: the lowest number of a dtype hides a key, also where it hides whole tiles."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from specbench.models.network import attention
from specbench.models.network.attention import grouped_attention
from specbench.models.network.passes import additive, causal_mask

KEYS, WINDOW, HEAD = 640, 64, 64  # of a window all tiles of keys but the last are hidden
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KERNELS = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION] if torch.cuda.is_available() else [SDPBackend.MATH]


@pytest.fixture(params=KERNELS, ids=str)
def _kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    with sdpa_kernel(request.param):
        yield


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 5])
def test_keys_before_a_window_count_for_nothing(device: torch.device, dtype: torch.dtype, queries: int) -> None:
    random = torch.Generator(device).manual_seed(0)
    shape = {"dtype": torch.float32, "device": device, "generator": random}
    query, key, value = (torch.randn((1, 4, n, HEAD), **shape) for n in (queries, KEYS, KEYS))  # type: ignore[call-overload]
    slots = torch.arange(KEYS - queries, KEYS, device=device).unsqueeze(0)
    seen = causal_mask(slots, KEYS, WINDOW)
    scores = (query @ key.mT / HEAD**0.5).masked_fill(~seen, -torch.inf)
    known = scores.softmax(-1) @ value
    value[:, :, : KEYS - WINDOW - queries] = 1e4  # what is hidden would be seen
    found = F.scaled_dot_product_attention(*(x.to(dtype) for x in (query, key, value)), attn_mask=additive(seen, dtype))
    assert found.isfinite().all()
    assert (found.float() - known).abs().max() < {torch.float32: 1e-4}.get(dtype, 0.03)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "groups", "queries"), [(1, 1, 5), (1, 4, 1), (3, 2, 5)])
@torch.no_grad()
def test_keys_in_parts_count_as_one(
    device: torch.device, dtype: torch.dtype, rows: int, groups: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some rows whole parts are hidden."""
    monkeypatch.setitem(attention.LONG, device.type, KEYS)
    monkeypatch.setitem(attention.PART, device.type, WINDOW)
    random = torch.Generator(device).manual_seed(0)

    def states(heads: int, places: int) -> Tensor:
        return torch.randn((rows, heads, places, HEAD), device=device, generator=random).to(dtype)

    query, key, value = states(2 * groups, queries), states(2, KEYS), states(2, KEYS)
    last = torch.tensor([KEYS - 9, 3 * WINDOW, 7][:rows], device=device)
    mask = additive(causal_mask(last[:, None] + torch.arange(queries, device=device), KEYS), dtype)
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    found, _ = grouped_attention(module, query, key, value, mask, scaling=0.1)  # type: ignore[arg-type]
    each = [x.float().repeat_interleave(groups, 1) for x in (key, value)]
    known = (query.float() @ each[0].mT * 0.1 + mask.float()).softmax(-1) @ each[1]
    assert found.isfinite().all()
    assert (found.transpose(1, 2).float() - known).abs().max() < {torch.float32: 1e-4}.get(dtype, 0.03)
