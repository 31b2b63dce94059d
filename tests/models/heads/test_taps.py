"""Which layers a head reads, by every rule there is, on the examples that are known of public heads.

Agreement of heads and targets: what is tapped, and what a right and a wrong tap give.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.models.heads.taps import Meaning, agreement, boundaries, named_in, read, shifted
from tests.support.checkpoints import llama, refusal_of
from tests.support.families import UNLIKE
from tests.support.head_passes import head_of, module_of, tokens
from tests.support.heads import write_head
from tests.support.tiny import network, worst

RULES: list[tuple[Meaning, list[int] | None, int, int, tuple[int, ...], str]] = [
    ("either", None, 32, 3, (2, 16, 29), "names none, and these are usual"),
    ("boundary", None, 28, 3, (2, 14, 25), "names none, and these are usual"),
    ("boundary", [2, 18, 33], 36, 3, (2, 18, 33), "names them"),
    ("boundary", [1, 46, 90], 94, 3, (1, 46, 90), "names them"),
    ("either", [1, 46, 90], 94, 3, (2, 47, 91), "names the outputs of layers 1, 46, 90"),  # Qwen3-235B
    ("either", [24, 30, 36], 36, 3, (24, 30, 36), "names them"),  # gpt-oss-120b, the last layer among them
    ("output", [1, 9, 17, 25, 33], 36, 5, (2, 10, 18, 26, 34), "names the outputs"),
    ("output", [0, 5], 6, 2, (1, 6), "names the outputs"),
    ("output", None, 36, 5, (2, 10, 18, 26, 34), "usual"),
    ("output", None, 36, 1, (19,), "usual"),
]


@pytest.mark.parametrize(("meaning", "ids", "layers", "count", "expected", "why"), RULES)
def test_the_rule_of_every_format(
    meaning: Meaning, ids: list[int] | None, layers: int, count: int, expected: tuple[int, ...], why: str
) -> None:
    found = boundaries(meaning, ids, layers, count)
    assert found.taken == expected
    assert why in found.why
    assert ", ".join(map(str, expected)) in found.why


def test_what_the_user_names_is_taken_as_it_is() -> None:
    found = boundaries("output", [1, 2, 3], 8, 3, override=(0, 4, 8))
    assert found.taken == (0, 4, 8)
    assert "--aux-layers names them" in found.why


NAMED: list[tuple[str, dict[str, Any], tuple[Meaning, list[int] | None]]] = [
    ("eagle3", {}, ("either", None)),
    ("eagle3", {"aux": (1, 4, 6)}, ("either", [1, 4, 6])),
    ("eagle3", {"aux": (1, 4, 6), "names": "speculators"}, ("boundary", [1, 4, 6])),
    ("eagle3", {"config": {"eagle_aux_hidden_state_layer_ids": [5, 4, 3]}}, ("boundary", [3, 4, 5])),
    ("dflash", {"aux": (1, 4)}, ("output", [1, 4])),
    ("dflash", {"aux": (1, 4), "names": "speculators"}, ("boundary", [1, 4])),
    ("dspark", {"aux": (1, 4), "config": {"dflash_config": None, "target_layer_ids": [2, 5]}}, ("output", [2, 5])),
]


@pytest.mark.parametrize(("kind", "how", "expected"), NAMED)
def test_where_the_list_stands_says_what_it_means(
    tmp_path: Path, kind: str, how: dict[str, Any], expected: tuple[Meaning, list[int] | None]
) -> None:
    assert named_in(head_of(write_head(tmp_path, kind, llama(num_hidden_layers=8), **how))) == expected


def test_a_list_of_other_things_is_refused(tmp_path: Path) -> None:
    folder = write_head(tmp_path, "eagle3", llama(), config={"eagle_aux_hidden_state_layer_ids": ["x"]})
    assert "unusable config.json" in refusal_of(named_in, head_of(folder))


V, T = 11, 9
TIGHT = 1e-11


@pytest.mark.parametrize("name", UNLIKE)
@torch.no_grad()
def test_taps_are_the_residual_stream_and_z_is_what_the_head_is_given(name: str) -> None:
    net = network(name, V)
    ids = tokens(net, 2, T)
    features, logits = read(net, ids, (0, 1, 2, "z"))
    told = net(input_ids=ids, output_hidden_states=True)
    first, inner, last, z = features.chunk(4, -1)
    assert worst(first, told.hidden_states[0]) == 0
    assert worst(inner, told.hidden_states[1]) == 0
    assert worst(z, told.hidden_states[2]) == 0  # transformers' last one is normed
    assert worst(last, z) > 1e-3
    assert worst(logits, told.logits) == 0


def word_by_word(seed: int = 0) -> Any:
    """A target that sees one token at a time, so that repeated ones are followed by the same token again."""
    net = copy.deepcopy(network("llama", V, seed))
    for layer in net.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    return net


def copying(folder: Path, target: Any, tap: int) -> Any:
    """A head that says what the target would say if what it reads were the last hidden state."""

    def still(tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] = torch.eye(16, dtype=torch.float64)
        tensors["norm.weight"] = target.model.norm.weight.detach().clone()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"midlayer.{name}.weight"].zero_()

    write_head(folder, "eagle3", target.config, aux=(tap,), lm_head=False, dtype=torch.float64, change=still,
               config={"rms_norm_eps": target.config.rms_norm_eps})  # fmt: skip
    return module_of(folder, target, (tap,))


def test_a_tap_that_is_one_off_is_seen(tmp_path: Path) -> None:
    target, text = word_by_word(), torch.arange(V).repeat_interleave(6).unsqueeze(0)
    right, wrong = copying(tmp_path / "a", target, 2), copying(tmp_path / "b", target, 1)
    best = agreement(right, target, text)
    assert best.share > 0.8  # all but where the text goes on to another token
    below = agreement(wrong, target, text)
    assert shifted(wrong.taps, 2) == (2,)
    above = agreement(wrong, target, text, taps=(2,))
    assert above.share == best.share
    assert below.share < 0.5
    assert below.clearly_below(above)
    assert not above.clearly_below(below)
    assert not above.clearly_below(best)
    assert best.rows == len(text[0]) - 1
    assert best.error == pytest.approx((best.share * (1 - best.share) / best.rows) ** 0.5)


def test_there_is_nothing_after_the_last_layer_and_nothing_beside_z() -> None:
    assert shifted((1, 2), 3) == (2, 3)
    assert shifted((1, 3), 3) is None
    assert shifted(("z",), 3) is None
