"""EAGLE-1 and EAGLE-3 modules against the slow equations, in every spelling and with every switch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.models.heads.taps import whole_pass
from specbench.models.network.sampling import known_tokens
from tests.support import head_oracle as oracle
from tests.support.checkpoints import refusal_of
from tests.support.head_passes import head_of, in_pieces, module_of, random, tokens
from tests.support.heads import write_head
from tests.support.tiny import network, worst

V, T, ROWS = 11, 9, 2
TIGHT = 1e-11
WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
ALL_SLIDE = {"layer_types": ["sliding_attention"], "sliding_window": 3}


def old_norms(tensors: dict[str, Tensor]) -> None:
    """The norms that old heads of speculators have."""
    for seed, name in enumerate(("embedding_layernorm", "pre_lm_head_layernorm", "transformer.input_layernorm")):
        tensors[f"{name}.weight"] = 1 + 0.3 * random(tensors["fusion_fc.weight"].shape[0], seed=seed)


# name: (format, switches of `write_head`, whether the residual is normed)
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "EAGLE-1": ("eagle1", {}, False),
    "EAGLE-1, no bias of fc": ("eagle1", {"bias": False}, False),
    "EAGLE-1, biases of attention": ("eagle1", {"qkv_bias": True}, False),
    "EAGLE-1, norms of the inputs": ("eagle1", {"para_norm": True}, False),
    "EAGLE-1, two layers": ("eagle1", {"layers": 2}, False),
    "EAGLE-1, an embedding of its own": ("eagle1", {"embed": True}, False),
    "EAGLE-1 of old speculators, with norms": ("eagle1", {"names": "old", "change": old_norms}, False),
    "EAGLE-3": ("eagle3", {}, False),
    "a reduced vocabulary": ("eagle3", {"vocab": 5}, False),
    "norms of queries and keys": ("eagle3", {"qk_norm": True}, False),
    "two layers": ("eagle3", {"layers": 2}, False),
    "a norm before fc": ("eagle3", {"norm_before_fc": True}, False),
    "a norm of every part": ("eagle3", {"fc_norm": True}, False),
    "the residual is normed": ("eagle3", {"norm_before_residual": True}, True),
    "speculators norm it": ("eagle3", {"names": "speculators"}, True),
    "speculators say no": ("eagle3", {"names": "speculators", "config": {"norm_before_residual": False}}, False),
    "speculators say yes": ("eagle3", {"names": "speculators", "config": {"norm_before_residual": True}}, True),
    "another width": ("eagle3", {"width": 24}, False),
    "an embedding of its own": ("eagle3", {"embed": True}, False),
    "the head of the target": ("eagle3", {"lm_head": False}, False),
    "tied to its embedding": ("eagle3", {"lm_head": False, "tie": True, "embed": True}, False),
    "tied to the embedding of the target": ("eagle3", {"lm_head": False, "tie": True}, False),
    "one window of two": ("eagle3", {"layers": 2, **WINDOW}, False),
    "a window in its only layer": ("eagle3", ALL_SLIDE, False),
    "a window in its only layer, and normed keys": ("eagle3", {**ALL_SLIDE, "qk_norm": True}, False),
    "one layer of the target": ("eagle3", {"aux": (1,)}, False),
    "two layers of the target": ("eagle3", {"aux": (0, 2)}, False),
    "the last hidden state alone": ("eagle3", {"use_aux": False, "vocab": 4}, False),
    "no norm of the state": (
        "eagle3", {"use_aux": False, "change": lambda tensors: tensors.pop("midlayer.hidden_norm.weight")}, False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Any:
    return network("llama", V)


def parts(target: Any, module: Any, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Tokens [rows, T] and the hidden states of the target that the head reads [rows, T, A·H]."""
    return tokens(target, rows, T), random(rows, T, len(module.taps) * target.config.hidden_size)


def embedded(target: Any, w: Any, ids: Tensor) -> Tensor:
    return torch.nn.functional.embedding(ids, w.get("embed_tokens.weight", target.get_input_embeddings().weight))


@torch.no_grad()
def rows_of(target: Any, head: Any, ids: Tensor, state: Tensor, normed: bool) -> tuple[Tensor, Tensor]:
    """[T, V] logits and [T, H] states by the equations of the authors."""
    w, c = head.tensors, head.config
    if head.kind == "eagle1":
        out = oracle.eagle1(w, c, embedded(target, w, ids), state)
        last = "pre_lm_head_layernorm.weight"
        return target.lm_head(oracle.rms(out, w[last]) if last in w else out), out
    out = oracle.eagle3(w, c, embedded(target, w, ids), state, normed)
    own = w.get("embed_tokens.weight", target.get_input_embeddings().weight)
    matrix = w.get("lm_head.weight", own if c.get("tie_word_embeddings") else target.lm_head.weight)
    return oracle.scattered(w, torch.nn.functional.linear(oracle.rms(out, w["norm.weight"]), matrix), V), out


def same(found: Tensor, expected: Tensor) -> None:
    known = expected.isfinite()
    assert torch.equal(found.isfinite(), known)
    assert worst(found[known], expected[known]) < TIGHT


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES)
def test_a_head_is_the_equations_of_its_authors(tmp_path: Path, target: Any, case: str) -> None:
    kind, switches, normed = CASES[case]
    if kind == "eagle3" and switches.get("use_aux", True):
        switches = {"aux": (0, 1, 2), **switches}
    folder = write_head(tmp_path, kind, target.config, dtype=torch.float64, **switches)
    module, head = module_of(folder, target), head_of(folder)
    aux = switches.get("aux", ("z",))
    assert module.taps == (aux if aux != (1,) else (2,))
    ids, features = parts(target, module)
    entered = module.enter(features)
    logits, states = whole_pass(module, ids, entered)
    for row in range(ROWS):
        read = features[row]
        state = (
            oracle.eagle3_enter(head.tensors, head.config, read, target.config.hidden_size) if aux[0] != "z" else read
        )
        same(entered[row], state)
        expected, out = rows_of(target, head, ids[row], state, normed)
        same(logits[row], expected.detach())
        same(states[row], out)


def test_copies_of_what_is_the_targets_are_borrowed(tmp_path: Path, target: Any) -> None:
    def copies(tensors: dict[str, Tensor]) -> None:
        tensors["embed_tokens.weight"] = target.get_input_embeddings().weight.detach().clone()
        tensors["lm_head.weight"] = target.lm_head.weight.detach().clone()

    plain = module_of(write_head(tmp_path / "a", "eagle1", target.config, dtype=torch.float64), target)
    folder = write_head(tmp_path / "b", "eagle1", target.config, names="old", dtype=torch.float64, change=copies)
    borrowing = module_of(folder, target)
    assert borrowing.embed_tokens is borrowing.lm_head is None
    ids, z = parts(target, plain)
    assert torch.equal(whole_pass(plain, ids, z)[0], whole_pass(borrowing, ids, z)[0])


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["speculators", "midlayer"])
def test_norm_output_feeds_the_normed_state_in_the_speculators_format_only(
    tmp_path: Path, target: Any, names: str
) -> None:
    how: dict[str, Any] = {"aux": (0, 1, 2), "names": names, "dtype": torch.float64, "norm_before_residual": True}
    feeding = module_of(write_head(tmp_path / "a", "eagle3", target.config, norm_output=True, **how), target)
    plain = module_of(write_head(tmp_path / "b", "eagle3", target.config, **how), target)
    ids, features = parts(target, plain)
    (first, fed), (same_first, unfed) = (whole_pass(m, ids, m.enter(features)) for m in (feeding, plain))
    assert torch.equal(first, same_first)  # one step is the same
    assert torch.equal(fed, feeding.norm(unfed)) == (names == "speculators")
    assert torch.equal(fed, unfed) == (names != "speculators")


def test_a_head_of_the_whole_vocabulary_needs_no_map(tmp_path: Path, target: Any) -> None:
    folder = write_head(tmp_path, "eagle3", target.config, aux=(0, 1, 2), dtype=torch.float64)
    module = module_of(folder, target)
    assert known_tokens(module, V) is None
    assert whole_pass(module, tokens(target, 1, T), random(1, T, module.width))[0].isfinite().all()


def test_what_is_outside_the_draft_vocabulary_is_never_drafted(tmp_path: Path, target: Any) -> None:
    folder = write_head(tmp_path, "eagle3", target.config, aux=(0, 1, 2), vocab=4, dtype=torch.float64)
    module, head = module_of(folder, target), head_of(folder)
    known = known_tokens(module, V)
    assert known is not None
    assert known.tolist() == head.tensors["t2d"].nonzero()[:, 0].tolist()
    rows = whole_pass(module, tokens(target, 1, T), random(1, T, module.width))[0].softmax(-1)
    outside = torch.ones(V, dtype=torch.bool).index_fill(0, known, value=False)
    assert rows[..., outside].eq(0).all()
    assert rows[..., known].gt(0).all()


# --- caches -----------------------------------------------------------------------------------------------------------

CACHED: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle1": ("eagle1", {}),
    "eagle3": ("eagle3", {"aux": (0, 1, 2), "vocab": 5}),
    "two layers, a window": ("eagle3", {"aux": (0, 1, 2), "layers": 2, **WINDOW}),
}


@pytest.mark.parametrize("case", CACHED)
def test_in_pieces_it_is_what_it_is_at_once(tmp_path: Path, target: Any, case: str) -> None:
    kind, switches = CACHED[case]
    module = module_of(write_head(tmp_path, kind, target.config, dtype=torch.float64, **switches), target)
    ids, features = parts(target, module)
    states = module.enter(features)
    expected = whole_pass(module, ids, states)[0]
    for cuts in ([4], [1, 2, 3], [5, 6, 8]):
        same(in_pieces(module, ids, states, cuts), expected)


# --- what is refused --------------------------------------------------------------------------------------------------


OPTIONAL = {"eagle1": {"fc.bias", "fc.weight"}, "eagle3": {"t2d"}}  # without fc an EAGLE-1 head is like no other
SWITCHES: dict[str, dict[str, Any]] = {"eagle1": {}, "eagle3": {"aux": (0, 1, 2), "vocab": 5}}


@pytest.mark.parametrize("kind", ["eagle1", "eagle3"])
def test_a_missing_tensor_is_named(tmp_path: Path, target: Any, kind: str) -> None:
    whole = head_of(write_head(tmp_path / "whole", kind, target.config, **SWITCHES[kind]))
    for name in whole.tensors.keys() - OPTIONAL[kind]:

        def without(stored: dict[str, Tensor], name: str = name) -> None:
            del stored[name]

        folder = write_head(tmp_path / name, kind, target.config, names="layers", change=without, **SWITCHES[kind])
        assert name in refusal_of(module_of, folder, target)


def test_a_harmless_tensor_is_a_warning(tmp_path: Path, target: Any) -> None:
    def harmless(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)

    module = module_of(write_head(tmp_path / "a", "eagle1", target.config, change=harmless), target)
    assert module.warnings == ("head: weights that are not used: layers.0.self_attn.rotary_emb.inv_freq",)
    assert module_of(write_head(tmp_path / "b", "eagle1", target.config), target).warnings == ()
