"""What identifies the weights that were computed with, wherever they came from. Knows networks alone."""

import hashlib
from typing import Any

import torch


def weights_sha256(network: Any) -> str:
    """SHA-256 over the name, type, shape and bytes of every weight and buffer, in the order of their names.

    Equal weights give equal digests from any file format and sharding; another dtype or quantisation gives another one.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
