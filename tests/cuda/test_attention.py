"""Attention under masks that are added: the lowest number of a dtype hides a key, also where it hides whole tiles."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from specbench.models.network.passes import additive, causal_mask
from tests.cuda.conftest import DRY

KEYS, WINDOW, HEAD = 640, 64, 64  # of a window all tiles of keys but the last are hidden
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PLACES = ("gpu", "cpu")  # the simulated GPU has kernels of the CPU
KERNELS = [SDPBackend.MATH] if DRY else [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]


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
