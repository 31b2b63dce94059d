"""Scale models by name: how they resolve, what cannot be grown, and that everything says what they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig

from specbench.backends.native import open_pair
from specbench.errors import UsageError
from specbench.files import ASSETS, read_checked
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint, default_draft, resolve, usual_settings
from specbench.models.scale import growth
from specbench.models.scale.shapes import Shape, checked_shapes, find, shapes
from specbench.show.report.questions import questions
from specbench.show.run_output import rendered
from specbench.show.text import scale_model
from specbench.spec import RunSpec
from tests.show.test_tables import printed
from tests.support.checkpoints import CPU, refusal_of, save_tiny
from tests.support.measured import cell, sample

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
}  # fmt: skip
LABELLED = "target demo@llama-7b, draft demo-draft@llama-68m"


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_the_shapes_have_as_many_weights_as_their_names_say() -> None:
    millions = {name: round(shape.parameters / 1e6) for name, shape in shapes().items()}
    assert millions == {"llama-68m": 68, "llama-160m": 162, "llama-300m": 322, "tinyllama-1.1b": 1100,
                        "llama3.2-1b": 1236, "llama-7b": 6738, "llama3-8b": 8030, "llama-13b": 13016}  # fmt: skip


@pytest.mark.parametrize("name", shapes())
def test_every_shape_holds_the_shipped_draft_and_is_a_shape_that_transformers_accepts(name: str) -> None:
    config = load_config(resolve(f"demo-draft@{name}"))
    assert isinstance(config, LlamaConfig)
    assert all(getattr(config, size) == getattr(find(name), size) for size in growth.SIZES)
    assert config.tie_word_embeddings is find(name).tie_word_embeddings


def test_the_shipped_target_fits_where_sixteen_layers_do() -> None:
    small = load_config(resolve("demo"))
    fits = {name for name, shape in shapes().items() if growth.obstacle(small, shape) is None}
    assert fits == set(shapes()) - {"llama-68m", "llama-160m"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: {hidden_size: 4}", "intermediate_size: Field required"),
        ("a: 7", "a name and sizes"),
        ("[]", "a name and sizes"),
        ("a: {hiden_size: 4}", "Field required"),
        ("a: {hidden_size: -4}", "hidden_size"),
        (f"a: {json.dumps({**SMALL, 'draft': 'b'})}", "no such shape for a draft: b"),
        ("a: [", "expected"),
    ],
)
def test_a_wrong_table_of_shapes_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "shapes.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint) as refusal:
        read_checked(file, checked_shapes)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_name_with_a_shape_resolves_to_the_original_and_the_shape(tmp_path: Path) -> None:
    assert resolve("demo@llama-7b") == Checkpoint(
        "demo@llama-7b", str(ASSETS / "pair" / "target"), shape=shapes()["llama-7b"]
    )
    assert resolve(f"{tmp_path}@llama-7b").source == str(tmp_path)
    hub = resolve("some/where@llama-13b", "abc")
    assert (hub.source, hub.revision, hub.shape) == ("some/where", "abc", shapes()["llama-13b"])
    assert resolve("llama-68m@llama-160m").revision == resolve("llama-68m").revision
    (tmp_path / "demo@llama-7b").mkdir()
    assert resolve(str(tmp_path / "demo@llama-7b")).shape is None
    assert default_draft(str(tmp_path / "demo@llama-7b")) is None


def test_a_shape_may_have_another_depth() -> None:
    whole, few = find("llama-7b"), find("llama-7b:4")
    assert few == whole.model_copy(update={"num_hidden_layers": 4, "name": "llama-7b:4"})
    assert few.of_depth(32).of_depth(2).name == "llama-7b:2"
    assert default_draft("demo@llama-7b:4") == "demo-draft@llama-68m"
    config = load_config(resolve("demo-draft@llama-68m:3"))
    assert (config.num_hidden_layers, config.hidden_size) == (3, 768)
    assert growth.label(config) == "demo-draft@llama-68m:3"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "demo@llama-8b",
            "unknown shape 'llama-8b' (did you mean llama3-8b or llama-7b?): choose one of llama-68m, llama-160m",
        ),
        ("demo@", "unknown shape ''"),
        ("demo@llama-7b:", "unknown shape 'llama-7b:'"),
        ("demo@llama-7b:0", "unknown shape 'llama-7b:0'"),
        ("demo@llama-7b:1000", "or another depth of one, such as llama-7b:4"),
        ("demo@llama-8b:4", "unknown shape 'llama-8b:4' (did you mean llama3-8b or llama-7b?)"),
        ("@llama-7b", "unknown model ''"),
        ("nope@llama-7b", "unknown model 'nope'"),
        ("demo@llama-7b@llama-13b", "demo@llama-7b is grown already"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, complaint: str) -> None:
    assert complaint in refusal_of(resolve, name)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("demo@llama-7b", "demo-draft@llama-68m"), ("demo@llama-13b", "demo-draft@llama-68m"),
        ("demo@llama3-8b", "demo-draft@llama3.2-1b"), ("demo@tinyllama-1.1b", "demo-draft@llama-68m"),
        ("demo@llama-300m", "demo-draft"), ("llama-7b@llama-13b", "llama-68m@llama-68m"),
        ("some/where@llama-7b", None), ("llama-68m@llama-7b", None),
    ],
)  # fmt: skip
def test_a_scale_model_has_the_draft_of_its_original_in_the_shape_that_goes_with_its_own(
    target: str, draft: str | None
) -> None:
    assert default_draft(target) == draft
    assert usual_settings(target, draft or "demo-draft") == {}


def test_the_default_drafts_of_the_shipped_target_fit_it() -> None:
    for name in set(shapes()) - {"llama-68m", "llama-160m"}:
        backend = open_pair([RunSpec(target=f"demo@{name}")])
        drafted = load_config(resolve(default_draft(f"demo@{name}") or ""))
        assert backend.context == min(find(name).max_position_embeddings, drafted.max_position_embeddings)
        assert backend.width == find(name).vocab_size


# --- what cannot be grown ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("small", "shape", "complaint"),
    [
        ({}, {"num_hidden_layers": 1}, "num_hidden_layers is 2, more than the 1 of mini: choose a larger shape"),
        ({}, {"hidden_size": 24}, "hidden_size is 32, more than the 24"),
        ({}, {"intermediate_size": 40}, "intermediate_size is 48"),
        ({}, {"vocab_size": 40}, "vocab_size is 64"),
        ({}, {"head_dim": 12}, "the head_dim of mini, 12, is no multiple of its 8"),
        ({}, {"num_attention_heads": 2}, "its 4 heads on 2 key/value heads need 4 key/value heads of mini"),
        ({}, {"num_key_value_heads": 1}, "need 2 key/value heads of mini, which has 1"),
        ({"attention_bias": True}, {}, "biases"),
        ({"mlp_bias": True}, {}, "biases"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, {}, "scaling is dynamic"),
        ({}, {"hidden_size": 32}, "no dimension is spare"),
        ({"rms_norm_eps": 0.0}, {}, "its rms_norm_eps is 0"),
    ],
)
def test_what_cannot_be_grown_is_refused_with_the_reason(
    small: dict[str, Any], shape: dict[str, Any], complaint: str
) -> None:
    larger = Shape(**{"name": "mini", **SMALL, "hidden_size": 64, "vocab_size": 100, **shape})
    reason = growth.obstacle(LlamaConfig(**{**SMALL, **small}), larger)
    assert reason is not None
    assert complaint in reason
    assert "\n" not in reason


def test_only_llama_grows_and_a_refusal_names_the_model(tmp_path: Path) -> None:
    reason = growth.obstacle(MistralConfig(), find("llama-7b"))
    assert reason == "only Llama checkpoints can be grown to another shape, and this one is mistral"
    message = refusal_of(load_config, resolve("demo@llama-68m"))
    assert message == (
        "demo@llama-68m: its num_hidden_layers is 16, more than the 2 of llama-68m: choose a larger shape"
    )
    assert "no config.json" in refusal_of(load_config, resolve(f"{tmp_path}@llama-7b"))


# --- what it is called ------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Checkpoint:
    folder = save_tiny(tmp_path / "tiny")
    shape = Shape(**{**SMALL, "name": "mini", "vocab_size": 100, "tie_word_embeddings": True, "rope_theta": 5e5})
    return Checkpoint(f"{folder}@mini", str(folder), shape=shape)


def test_a_loaded_scale_model_says_so_without_the_place_of_its_original(tiny: Checkpoint) -> None:
    loaded = load_model(tiny, None, CPU)
    assert growth.label(loaded.model.config) == "tiny@mini"
    (warning,) = loaded.warnings
    assert warning == (
        f"{tiny.name}: scale model: the function of tiny at the cost of mini; acceptance is the small pair's; "
        "rope base 10000 (default) as in the original; embeddings not tied, as in the original"
    )
    assert not loaded.model.training
    assert not any(p.requires_grad or p.is_meta for p in loaded.model.parameters())
    assert not any(b.is_meta for b in loaded.model.buffers())
    assert load_tokenizer(tiny).get_vocab() == load_tokenizer(Checkpoint("tiny", tiny.source)).get_vocab()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_of_a_scale_model_is_the_one_asked_for(tiny: Checkpoint, dtype: torch.dtype) -> None:
    loaded = load_model(tiny, dtype, CPU)
    assert {p.dtype for p in loaded.model.parameters()} == {dtype} == {loaded.dtype}


def test_how_many_ids_of_a_scale_model_are_real(tiny: Checkpoint) -> None:
    assert growth.vocabulary(load_config(tiny)) == 64
    assert growth.vocabulary(load_config(resolve("demo"))) is None


@pytest.mark.parametrize(("told", "called"), [("x", "?@?"), ({}, "?@?"), ({"from": "a\nb", "like": 3}, "a b@3")])
def test_a_damaged_mark_is_a_mark_all_the_same(told: object, called: str) -> None:
    config = LlamaConfig(**{growth.KEY: told})
    assert growth.label(config) == called
    assert growth.vocabulary(config) is None
    assert len(growth.warnings("x", config)) == 1


@pytest.mark.parametrize(
    ("target", "draft", "column"),
    [
        ("demo@llama-7b", "demo-draft@llama-68m", LABELLED),
        ("demo@llama-300m", "demo-draft", "target demo@llama-300m"),
        ("demo", "demo-draft@llama-68m", "draft demo-draft@llama-68m"),
        ("demo", "demo-draft", ""),
    ],
)
def test_a_column_names_the_roles_that_are_scale_models(target: str, draft: str, column: str) -> None:
    assert open_pair([RunSpec(target=target, draft=draft)]).describe()["scale_model"] == column


LINE = f"scale model: {LABELLED}: the function of the small model at the cost of the shape"


def test_tables_and_reports_of_scale_models_say_so_and_others_do_not() -> None:
    scaled = [cell(sample(), resolved={"scale_model": LABELLED}, k=k) for k in (3, 4)]
    plain = cell(sample(), resolved={"scale_model": ""})
    rows = [found.row() for found in scaled]
    for shown in (printed(scaled[0]), printed(*scaled), rendered(rows, "md"), rendered(rows[:1], "md")):
        assert LINE.split(" the ")[0] in " ".join(shown.split())
    (question,) = questions(scaled, rows, "")
    assert LINE in question.settings
    assert "scale model" not in printed(plain) + rendered([plain.row()], "md")
    assert "scale model" not in questions([plain], [plain.row()], "")[0].settings
    assert scale_model([plain.row(), {}]) is None
