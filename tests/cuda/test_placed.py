"""A draft that lies apart from its target draws what it draws beside it."""

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.decoding.decode import begin
from specbench.decoding.randomness import seeded
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.cuda.conftest import DRY
from tests.support.checkpoints import llama

pytestmark = pytest.mark.skipif(DRY, reason="there is no second device")


def test_a_draft_on_the_processor_draws_what_it_draws_on_the_gpu() -> None:
    torch.manual_seed(0)
    network, device = LlamaForCausalLM(llama()).double().eval(), torch.device("cuda", 0)
    drawn = []
    for place in ("cuda", "cpu"):
        model, context = Causal(network.to(place), Sampling(temperature=1.0), 64), begin([[3, 1, 4]], 8, 4, [], device)
        model.start(context)
        drawn.append(model.sample(context, 3, seeded([0], device)))
    assert drawn[0][0].equal(drawn[1][0])
    torch.testing.assert_close(drawn[0][1], drawn[1][1], rtol=0, atol=1e-10)
