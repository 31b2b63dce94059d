"""EAGLE-1 and EAGLE-3 modules against the slow equations, in every spelling and with every switch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.models.heads.taps import whole_pass
from specbench.models.network.reduced import known_tokens
from tests.support import head_oracle as oracle
from tests.support.checkpoints import refusal_of
from tests.support.head_passes import head_of, in_pieces, module_of, random, tokens
from tests.support.heads import write_head
from tests.support.tiny import network, worst

V, T, ROWS = 11, 9, 2
TIGHT = 1e-11
WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
ALL_SLIDE = {"layer_types": ["sliding_attention"], "sliding_window": 3}

EAGLE1: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias of fc": {"bias": False},
    "biases of attention": {"qkv_bias": True},
    "norms of the inputs": {"para_norm": True},
    "two layers": {"layers": 2},
    "an embedding of its own": {"embed": True},
}
EAGLE3: dict[str, dict[str, Any]] = {
    "plain": {},
    "a reduced vocabulary": {"vocab": 5},
    "norms of queries and keys": {"qk_norm": True},
    "two layers": {"layers": 2},
    "a norm before fc": {"norm_before_fc": True},
    "a norm of every part": {"fc_norm": True},
    "the residual is normed": {"norm_before_residual": True},
    "another width": {"width": 24},
    "an embedding of its own": {"embed": True},
    "the head of the target": {"lm_head": False},
    "tied to its embedding": {"lm_head": False, "tie": True, "embed": True},
    "tied to the embedding of the target": {"lm_head": False, "tie": True},
    "one window of two": {"layers": 2, **WINDOW},
    "a window in its only layer": ALL_SLIDE,
    "a window in its only layer, and normed keys": {**ALL_SLIDE, "qk_norm": True},
    "one layer of the target": {"aux": (1,)},
    "two layers of the target": {"aux": (0, 2)},
}


@pytest.fixture(scope="module")
def target() -> Any:
    return network("llama", V)


def parts(target: Any, module: Any, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Tokens [rows, T] and the hidden states of the target that the head reads [rows, T, A·H]."""
    return tokens(target, rows, T), random(rows, T, len(module.taps) * target.config.hidden_size)


def embedded(target: Any, w: Any, ids: Tensor) -> Tensor:
    return torch.nn.functional.embedding(ids, w.get("embed_tokens.weight", target.get_input_embeddings().weight))


@torch.no_grad()
def eagle1_rows(target: Any, w: Any, c: Any, ids: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    out = oracle.eagle1(w, c, embedded(target, w, ids), z)
    return target.lm_head(out), out


@torch.no_grad()
def eagle3_rows(target: Any, w: Any, c: Any, ids: Tensor, g: Tensor, normed: bool = False) -> tuple[Tensor, Tensor]:
    out = oracle.eagle3(w, c, embedded(target, w, ids), g, normed)
    own = w.get("embed_tokens.weight", target.get_input_embeddings().weight)
    matrix = w.get("lm_head.weight", own if c.get("tie_word_embeddings") else target.lm_head.weight)
    logits = torch.nn.functional.linear(oracle.rms(out, w["norm.weight"]), matrix)
    return oracle.scattered(w, logits, V), out


def same(found: Tensor, expected: Tensor) -> None:
    known = expected.isfinite()
    assert torch.equal(found.isfinite(), known)
    assert worst(found[known], expected[known]) < TIGHT


@pytest.mark.parametrize("case", EAGLE1)
def test_eagle1_is_its_equations(tmp_path: Path, target: Any, case: str) -> None:
    folder = write_head(tmp_path, "eagle1", target.config, dtype=torch.float64, **EAGLE1[case])
    module, head = module_of(folder, target), head_of(folder)
    ids, z = parts(target, module)
    logits, states = whole_pass(module, ids, module.enter(z))
    for row in range(ROWS):
        expected, out = eagle1_rows(target, head.tensors, head.config, ids[row], z[row])
        same(logits[row], expected)
        same(states[row], out)


@pytest.mark.parametrize("case", EAGLE3)
def test_eagle3_is_its_equations(tmp_path: Path, target: Any, case: str) -> None:
    switches = {"aux": (0, 1, 2), **EAGLE3[case]}
    folder = write_head(tmp_path, "eagle3", target.config, dtype=torch.float64, **switches)
    module, head = module_of(folder, target), head_of(folder)
    assert module.taps == (switches["aux"] if switches["aux"][0] != 1 else (2,))
    ids, features = parts(target, module)
    entered = module.enter(features)
    logits, states = whole_pass(module, ids, entered)
    w, c = head.tensors, head.config
    for row in range(ROWS):
        g = oracle.eagle3_enter(w, c, features[row], target.config.hidden_size)
        same(entered[row], g)
        expected, out = eagle3_rows(target, w, c, ids[row], g, bool(switches.get("norm_before_residual")))
        same(logits[row], expected)
        same(states[row], out)


def test_eagle3_on_the_last_hidden_state_alone(tmp_path: Path, target: Any) -> None:
    folder = write_head(tmp_path, "eagle3", target.config, dtype=torch.float64, use_aux=False, vocab=4)
    module, head = module_of(folder, target), head_of(folder)
    ids, z = parts(target, module, 1)
    assert module.taps == ("z",)
    assert torch.equal(module.enter(z), z)
    same(whole_pass(module, ids, z)[0][0], eagle3_rows(target, head.tensors, head.config, ids[0], z[0])[0])


def test_without_a_norm_of_the_state_it_enters_as_it_is(tmp_path: Path, target: Any) -> None:
    folder = write_head(
        tmp_path,
        "eagle3",
        target.config,
        dtype=torch.float64,
        use_aux=False,
        change=lambda tensors: tensors.pop("midlayer.hidden_norm.weight"),
    )
    module, head = module_of(folder, target), head_of(folder)
    ids, z = parts(target, module, 1)
    same(whole_pass(module, ids, z)[0][0], eagle3_rows(target, head.tensors, head.config, ids[0], z[0])[0])


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


def speculators(folder: Path, target: Any, **switches: Any) -> Any:
    config = {"norm_before_residual": switches.pop("norm_before_residual", None)}
    how: dict[str, Any] = {"names": "speculators", "dtype": torch.float64, "config": config, "aux": (0, 1, 2)}
    return write_head(folder, "eagle3", target.config, **how, **switches)


@pytest.mark.parametrize(("said", "meant"), [(None, True), (False, False), (True, True)])
def test_the_residual_of_speculators_heads_is_normed_unless_they_say_no(
    tmp_path: Path, target: Any, said: bool | None, meant: bool
) -> None:
    folder = speculators(tmp_path, target, norm_before_residual=said)
    module, head = module_of(folder, target), head_of(folder)
    ids, features = parts(target, module, 1)
    g = oracle.eagle3_enter(head.tensors, head.config, features[0], target.config.hidden_size)
    expected = eagle3_rows(target, head.tensors, head.config, ids[0], g, meant)
    other = eagle3_rows(target, head.tensors, head.config, ids[0], g, not meant)
    found = whole_pass(module, ids, module.enter(features))[0][0]
    same(found, expected[0])
    assert worst(found, other[0]) > 1e-3


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


def test_old_speculators_heads_have_their_norms(tmp_path: Path, target: Any) -> None:
    def with_norms(tensors: dict[str, Tensor]) -> None:
        for seed, name in enumerate(("embedding_layernorm", "pre_lm_head_layernorm", "transformer.input_layernorm")):
            tensors[f"{name}.weight"] = 1 + 0.3 * random(target.config.hidden_size, seed=seed)

    folder = write_head(tmp_path, "eagle1", target.config, names="old", dtype=torch.float64, change=with_norms)
    module, head = module_of(folder, target), head_of(folder)
    ids, z = parts(target, module, 1)
    logits, states = whole_pass(module, ids, z)
    _, out = eagle1_rows(target, head.tensors, head.config, ids[0], z[0])
    same(states[0], out)
    same(logits[0], target.lm_head(oracle.rms(out, head.tensors["pre_lm_head_layernorm.weight"])).detach())


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
