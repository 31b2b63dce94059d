"""What a GPU holds and gives back, what NVML says of it, and drafts that lie apart from their target."""

import gc

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.decoding.decode import begin
from specbench.decoding.randomness import seeded
from specbench.errors import out_of_memory
from specbench.measure.sensors import sensors_for
from specbench.models.checkpoints.description import resolve_device
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.results import machine
from specbench.results.machine import environment
from tests.cuda.support import decoded, opened, said, spec_of, traces
from tests.support.checkpoints import llama
from tests.support.tinypair import Pair

PLACES = ("gpu",)
CONSTANTS = 1 << 16  # bytes of masks and places of trees, which are kept for the next round of the same form


def held() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("tier", ["eager", "graph", "compile"])
def test_a_pair_that_is_unloaded_gives_everything_back(pair: Pair, device: torch.device, tier: str) -> None:
    spec = spec_of(pair, device, "chain", tier)
    decoded(spec)  # libraries keep what they take at their first call
    before = held()
    first = said(decoded(spec))
    assert held() <= before
    assert said(decoded(spec)) == first, "captured again after what was captured before is gone"


def test_arms_that_nothing_needs_any_more_give_their_caches_back(pair: Pair, device: torch.device) -> None:
    one, other = (spec_of(pair, device, method, "graph", batch=4) for method in ("chain", "tree-top"))
    with opened(one) as native:
        traces(native, one)
        before = held()
        traces(native, other)
        assert held() > before + CONSTANTS
        native.keep([one])
        assert held() <= before + CONSTANTS


def test_memory_that_runs_out_in_a_capture_is_said_to_have(pair: Pair, device: torch.device) -> None:
    spec, before = spec_of(pair, device, "chain", "graph"), torch.cuda.current_stream()
    with opened(spec) as native:

        def greedy(*_: object) -> None:
            if torch.cuda.is_current_stream_capturing():
                torch.empty(1 << 50, device=device)

        handle = native.network("target").register_forward_hook(greedy)
        with pytest.raises(Exception) as failed:  # noqa: PT011 - whatever comes of it
            traces(native, spec)
        assert out_of_memory(failed.value)
        assert torch.cuda.current_stream() == before
        handle.remove()
        assert said(traces(native, spec)) == said(decoded(spec_of(pair, device, "chain", "eager")))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("tier", ["eager", "graph", "compile"])
def test_the_second_gpu_decodes_what_the_first_does(pair: Pair, tier: str) -> None:
    first, second = (said(decoded(spec_of(pair, torch.device(name), "chain", tier))) for name in ("cuda:0", "cuda:1"))
    assert first == second


def test_a_device_without_a_number_is_the_current_one_without_cudnn_attention() -> None:
    assert resolve_device("cuda").index == torch.cuda.current_device()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_draft_on_the_processor_draws_what_it_draws_on_the_gpu() -> None:
    torch.manual_seed(0)
    network, device = LlamaForCausalLM(llama()).double().eval(), torch.device("cuda", 0)
    drawn = []
    for place in ("cuda", "cpu"):
        model, context = Causal(network.to(place), Sampling(temperature=1.0), 64), begin([[3, 1, 4]], 8, 4, [], device)
        model.start(context)
        drawn.append(model.sample(context, 3, seeded([0], device)))
    assert drawn[0][0].equal(drawn[1][0])
    torch.testing.assert_close(drawn[0][1], drawn[1][1], rtol=0, atol=1e-8)  # rotary angles are float32 on both


def test_a_gpu_at_work_says_how_fast_it_is(device: torch.device) -> None:
    if not machine.installed():
        pytest.skip("needs the extra gpu")
    watch = sensors_for(device)
    assert watch.remark == ""
    before = watch.begin()
    some = torch.ones(4096, 4096, device=device)
    for _ in range(50):
        some = some @ some * 1e-4
    torch.cuda.synchronize()
    found = watch.end(before)
    assert found.gpu_mhz is not None
    assert found.gpu_memory_mhz is not None
    assert found.gpu_mhz > 100
    assert found.gpu_memory_mhz > 100
    assert found.gpu_watts is None or 1 < found.gpu_watts < 5000
    assert found.gpu_celsius is None or 10 < found.gpu_celsius < 120
    assert environment(device)["gpu_driver"]
