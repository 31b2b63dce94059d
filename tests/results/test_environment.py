"""What a run records of the machine."""

import torch

from specbench.results.environment import attention_kinds


def test_the_kinds_of_attention_are_those_that_are_left_in() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        assert attention_kinds() == "flash, efficient, cudnn, math"
        torch.backends.cuda.enable_cudnn_sdp(False)
        assert attention_kinds() == "flash, efficient, math"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
