"""Networks quantised after loading: which weights, that they decode as transformers says, and what is refused.

Checkpoints that are stored quantised: they load where their library is there, else the extra is named.
"""

import importlib.util
import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    TorchAoConfig,
)

from specbench.backends import tiers
from specbench.backends.checked import check_models
from specbench.backends.tiers import unfused
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.models.checkpoints import names, quantise
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.divided import How
from specbench.models.checkpoints.loading import Loaded, load_model
from specbench.models.checkpoints.names import resolve
from specbench.models.execution import compiled, int8_operators
from specbench.models.execution.compile_cache import NAME, place
from specbench.models.network.causal import Causal
from specbench.models.network.packed import Int4Linear, Int8Linear
from specbench.models.network.recurrent import rollback_of
from specbench.models.network.sampling import Sampling
from specbench.spec import RunSpec
from tests.support.checkpoints import CPU, WEIGHTS, llama, refusal_of, save_tiny
from tests.support.frontdoor import Command
from tests.support.tinypair import prompts

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="the extra quant is not installed"
)
BY_TORCHAO = [pytest.param(kind, marks=needs_torchao) for kind in ("int8", "int4", "fp8")]
OURS = ("w8a8", "w4a8", "w8a8+head", "w4a8+head")
kinds = pytest.mark.parametrize("kind", [*BY_TORCHAO, *OURS])
KERNELS = {
    "int8": "_weight_int8pack_mm",
    "int4": "int4",
    "w4a8+head": "specbench.linear",
}  # that read packed weights, in machine code
PROMPT = [5, 9, 2, 40, 7]


@pytest.fixture(autouse=True)
def _by_torch(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Products of codes are torch's unless a test is slow: ours take ten seconds to compile, and are the same."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(int8_operators, "missing", lambda: "no compiler is wanted")


SHAPE = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64, "eos_token_id": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint whose rows fit into groups, and whose distributions are far from uniform."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama(**SHAPE, bos_token_id=None))
    for weight in (w for w in model.parameters() if w.ndim > 1):
        weight.data *= 15
    place = tmp_path_factory.mktemp("quantised")
    model.save_pretrained(place)
    return place


def quantised(folder: Path, kind: str | None) -> Loaded:
    return load_model(resolve(str(folder)), torch.float32, CPU, how=How(kind))


def speculated(target: Any, draft: Any, prompt: Sequence[int], new: int) -> list[int]:
    """Greedy tokens of speculation with our caches and masks."""
    width = target.config.vocab_size
    models = [Causal(network, Sampling(0), width) for network in (draft, target)]
    method = Speculate(ModelDrafter(models[0], 3), models[1], Rejection())
    (trace,) = decode(method, [prompt], new=new, eos=(), rng=seeded([0], CPU), device=CPU)
    return list(trace.tokens)


@kinds
def test_a_quantised_target_decodes_as_transformers_decodes_it(folder: Path, kind: str) -> None:
    loaded, draft = quantised(folder, kind), quantised(folder, None).model
    assert rollback_of(loaded.model, False, 64, "tiny") == "position"
    theirs = loaded.model.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, pad_token_id=0)
    assert speculated(loaded.model, draft, PROMPT, 24) == theirs[0, len(PROMPT) :].tolist()
    by, share = "" if kind in OURS else " by torchao", 94 if "+" in kind else 88
    assert loaded.weights == f"safetensors, {kind}{by} ({share if '+' not in kind else 94}% of the weights)"
    assert "lossless means: with respect to the quantised weights" in loaded.warnings[-1]


@kinds
def test_linear_layers_are_quantised_and_head_embedding_and_norms_are_not(folder: Path, kind: str) -> None:
    plain, loaded = quantised(folder, None).model, quantised(folder, kind).model
    weights = dict(plain.named_parameters())
    changed = {
        name
        for name, one in loaded.named_parameters()
        if type(one) is not type(weights[name]) or one.dtype != torch.float32
    }
    head = "+" in kind
    assert changed == {f"{name}.weight" for name in quantise.linear_layers(plain, head)}
    assert len(changed) == 7 * plain.config.num_hidden_layers + head
    for untouched in ("model.embed_tokens", "model.norm", *([] if head else ["lm_head"])):
        assert torch.equal(loaded.get_submodule(untouched).weight, plain.get_submodule(untouched).weight)
    layer, eye = "model.layers.1.mlp.up_proj", torch.eye(64)
    far = (loaded.get_submodule(layer)(eye) - plain.get_submodule(layer)(eye)).abs().mean()
    assert 0 < far < 0.1 * plain.get_submodule(layer).weight.abs().mean()


@kinds
def test_bytes_are_known_before_anything_is_loaded(folder: Path, kind: str) -> None:
    config, held = load_config(resolve(str(folder))), 0
    with torch.device("meta"):
        empty = LlamaForCausalLM(config).to(torch.float32)
    model = quantised(folder, kind).model
    ours = [one for layer in model.modules() if isinstance(layer, (Int8Linear, Int4Linear)) for one in layer.buffers()]
    for weight in (*model.parameters(), *ours):
        names = (*getattr(weight, "tensor_data_names", ()), *getattr(weight, "optional_tensor_data_names", ()))
        parts = [getattr(weight, name) for name in names] if names else [weight]
        held += sum(part.numel() * part.element_size() for part in parts if part is not None)
    assert quantise.bytes_of(empty, kind) == pytest.approx(held, rel=0.01)
    assert quantise.bytes_of(empty) > 2 * quantise.bytes_of(empty, kind)


@needs_torchao
def test_layers_that_no_group_fits_keep_their_type_and_are_counted() -> None:
    model = LlamaForCausalLM(llama(hidden_size=32, intermediate_size=48)).eval()
    done = quantise.apply(model, "int4", CPU)
    assert (done.layers, done.left) == (12, 2), "the rows of down_proj are 48 long"
    assert "2 linear layers whose width is no multiple of 32" in done.warnings[0]
    without = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64))
    assert "GPT2LMHeadModel has no linear layers" in refusal_of(quantise.apply, without, "int8", CPU)


@needs_torchao
def test_what_does_not_compute_here_is_refused_before_a_weight_is_read() -> None:
    refused = refusal_of(load_model, resolve("demo"), torch.float64, CPU, lambda *_: None, How("int8"))
    assert refused.startswith("int8 weights do not compute on cpu in float64 here: ")


def test_what_quantises_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find_spec", lambda _: None)
    refused = refusal_of(load_model, resolve("demo"), torch.float32, CPU, lambda *_: None, How("int8"))
    assert refused == "quantising to int8 needs torchao: pip install 'specbench-decoding[quant]'"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*BY_TORCHAO[:2], "w4a8+head"])
def test_quantised_weights_stay_packed_where_rounds_are_compiled(
    kind: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, str(tmp_path / "kept"))  # so that nothing of another test lies there
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    words = ("--dataset", data, "--max-new-tokens", "12", "--warmup", "0", "--dtype", "bfloat16")
    words = (*words, "--method", "baseline")  # a draft would be compiled as well, and is not quantised
    found = command("run", *words, "--quantize", kind, "--tier", "compile")
    (row,) = found.table()
    assert (found.code, row["status"], row["tier_resolved"]) == (0, "ok", "compile"), found.err
    assert "as a whole" not in found.err
    sources = [json.loads(file.read_text())["source"] for file in place().rglob("regions/*.json")]
    assert any(KERNELS[kind] in source for source in sources)


def test_weights_that_would_be_unpacked_are_not_compiled_as_a_whole() -> None:
    assert tiers.not_whole(RunSpec(tier="compile", quantize="int8")).startswith("where the compiler would unpack")
    assert tiers.not_whole(RunSpec(tier="compile", draft_quantize="fp8")).startswith("where the compiler would")
    assert not tiers.not_whole(RunSpec(tier="compile", quantize="int4"))
    assert tiers.not_whole(RunSpec(tier="auto")) == "for minutes, as --tier compile does"


CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("asked", "changes", "name"),
    [
        ("auto", {"quantize": "int8"}, "compile"),
        ("auto", {"draft_quantize": "fp8"}, "compile"),
        ("auto", {"quantize": "w8a8+head"}, "compile"),
        ("auto", {"quantize": "int4"}, "graph"),
        ("auto", {}, "graph"),
        ("graph", {"quantize": "int8"}, "graph"),
        ("auto", {"quantize": "int8", "draft_device": "cpu"}, "eager"),
    ],
)
def test_a_gpu_compiles_by_itself_what_other_tiers_would_unpack(
    asked: Any, changes: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    assert tiers.choose([RunSpec(tier=asked, **changes)], CUDA)[0] == name
    monkeypatch.setattr(compiled, "missing_compiler", lambda: "there is none")
    assert tiers.choose([RunSpec(tier=asked, **changes)], CUDA)[0] == name.replace("compile", "graph")


VIEWS = {"t", "detach", "view", "alias", "transpose", "_unsafe_view"}


class Traffic(TorchDispatchMode):
    """The bytes that operators read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs, found)) if isinstance(one, torch.Tensor)]
        plain = all(type(one) in (torch.Tensor, torch.nn.Parameter) for one in tensors)
        if plain and func._schema.name.split("::")[1] not in VIEWS:
            self.bytes += sum(one.numel() * one.element_size() for one in tensors)
        return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [None, *BY_TORCHAO[::2]])
def test_the_bytes_that_unfused_layers_move_per_weight_are_those_of_the_notes(
    kind: str | None, dtype: torch.dtype
) -> None:
    size = 512
    net = torch.nn.Sequential(torch.nn.Linear(size, size, bias=False, dtype=dtype))
    if kind:
        quantise.put(net, kind, CPU, {"0"})
    with torch.no_grad(), Traffic() as counted:
        net(torch.ones(1, size, dtype=dtype))
    known = quantise.UNFUSED[kind][dtype.itemsize] if kind else dtype.itemsize
    assert counted.bytes / size**2 == pytest.approx(known, abs=0.1)


def test_a_note_gives_the_bytes_that_a_gpu_moves_for_weights_that_it_unpacks() -> None:
    pair = check_models([RunSpec(dtype="bfloat16", quantize="w8a8")], CPU, "eager")
    assert unfused(pair, "eager") == []
    how = replace(pair.roles["target"].how, quantize="int8")
    roles = {"target": replace(pair.roles["target"], how=how), "draft": pair.roles["draft"]}
    assert unfused(replace(pair, roles=roles), "eager") == []
    pair = replace(pair, roles=roles, device=CUDA)
    assert unfused(pair, "compile") == []
    (note,) = unfused(pair, "graph")
    assert "in the tier graph the int8 weights of the target are unpacked in every pass (5 bytes per weight" in note
    assert "2 without --quantize" in note
    roles["draft"] = replace(roles["draft"], how=replace(how, quantize="w8a8"))
    assert "w8a8 weights of the draft take about 20 kernels" in unfused(replace(pair, roles=roles), "graph")[1]
    roles["draft"] = replace(roles["draft"], how=replace(how, quantize="fp8"), device=CPU)
    assert len(unfused(replace(pair, roles=roles), "eager")) == 1, "a CPU has its own kernels"


def test_layers_of_a_gpu_are_ours_where_torchao_would_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [quantise.ours(kind, CUDA) for kind in (*OURS, "int8", "int4", "fp8")] == [True, False, True] + 4 * [False]
    assert quantise.ours("w4a8", CPU)
    monkeypatch.setattr(int8_operators, "missing", lambda: pytest.fail("the operator is for a CPU"))
    assert "slow here" not in quantise.Quantised("w8a8", 7, 0, 0.9, "", on_cpu=False).warnings[0]
    assert "such layers are for a CPU" in refusal_of(quantise.torchao_settings, "w4a8", CUDA)


@needs_torchao
@pytest.mark.parametrize(("slow", "refused"), [(3.1, True), (2.9, False)])
def test_weights_that_a_gpu_is_slow_with_are_refused_with_their_time(
    slow: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"int4": slow * 1e-4, None: 1e-4}
    monkeypatch.setattr(quantise, "put", lambda *_: None)
    monkeypatch.setattr(quantise, "seconds_of", lambda kind, dtype, device: seconds[kind])
    elsewhere = torch.device("meta")  # a device that is no CPU, and that torch has everywhere
    for kind in ("fp8", "w8a8"):
        quantise.refuse_unable(kind, torch.bfloat16, elsewhere)  # tiers that compile make these fast
    if not refused:
        quantise.refuse_unable("int4", torch.bfloat16, elsewhere)
        return
    found = refusal_of(quantise.refuse_unable, "int4", torch.bfloat16, elsewhere)
    assert found.startswith("int4 weights are 3.1 times as slow as unquantised ones on this meta device, and 3 times")
    assert "takes 310 µs, not 100" in found


def test_the_time_of_a_layer_is_that_of_its_fastest_series_without_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], [0]

    def run(x: torch.Tensor) -> None:
        calls[0] += 1
        now[0] += 100 if calls[0] == 1 else 2 if calls[0] <= 2 * quantise.REPLAYS else 1

    monkeypatch.setattr(quantise, "WIDE", 64)
    monkeypatch.setattr(quantise.graphs, "Shared", lambda device: None)
    monkeypatch.setattr(quantise.graphs, "Repeated", lambda layer, shared: run)
    monkeypatch.setattr(quantise, "clock_for", lambda device: WallClock(now=lambda: now[0]))
    assert quantise.seconds_of.__wrapped__("w8a8", torch.float32, CPU) == 1.0
    assert calls[0] == quantise.SERIES * quantise.REPLAYS


def test_the_attention_is_the_one_asked_for() -> None:
    def attention(name: str | None) -> str:
        return str(
            load_model(resolve("demo-draft"), None, CPU, how=How(attention=name)).model.config._attn_implementation
        )

    assert (attention(None), attention("sdpa"), attention("eager")) == ("specbench_grouped", "sdpa", "eager")
    with pytest.raises(UsageError, match=r"flash_attention_2: .* need .*: use auto, sdpa or eager"):
        attention("flash_attention_2")


TEXT = torch.tensor([[5, 9, 2, 40, 7]])
BLOCK = 128
FP8 = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}


def declare(folder: Path, **quantization: object) -> Path:
    """Say in config.json that the weights are quantised."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantization}))
    return folder


def test_the_extras_install_what_is_asked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for extra, modules in names.EXTRAS.items():
        declared = [line.split(">")[0].replace("-", "_") for line in project["optional-dependencies"][extra]]
        assert set(modules) <= set(declared), extra


def test_fp8_weights_are_unpacked_on_a_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": BLOCK, "intermediate_size": 2 * BLOCK, "num_key_value_heads": 2}
    model = LlamaForCausalLM(llama(**shape, eos_token_id=None)).eval()
    model.save_pretrained(tmp_path)
    packed: dict[str, torch.Tensor] = {}
    for name, weight in load_file(tmp_path / WEIGHTS).items():
        packed |= in_blocks(name, weight) if "proj" in name else {name: weight}
    save_file(packed, tmp_path / WEIGHTS, metadata={"format": "pt"})
    checkpoint = resolve(str(declare(tmp_path, **FP8, modules_to_not_convert=["lm_head"])))
    loaded = load_model(checkpoint, None, CPU)
    assert (loaded.weights, loaded.model.dtype) == ("fp8, dequantised", torch.float32)
    assert rollback_of(loaded.model, False, 64, "tiny") == "position"
    ours, theirs = loaded.model.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight
    assert torch.allclose(ours, theirs, rtol=0.07, atol=1e-3), "three bits of mantissa"
    assert not torch.equal(ours, theirs)
    assert "quantised by fp8 already: leave --quantize out" in refusal_of(
        load_model, checkpoint, None, CPU, lambda *_: None, How("int8")
    )


def in_blocks(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A matrix as float8, with a scale for every block."""
    rows, columns = (size // BLOCK for size in weight.shape)
    blocks = weight.reshape(rows, -1, columns, BLOCK) if rows else weight.reshape(1, -1, columns, BLOCK)
    scale = blocks.abs().amax((1, 3), keepdim=True) / 448
    eight = (blocks / scale).to(torch.float8_e4m3fn).reshape(weight.shape)
    return {name: eight, name.replace(".weight", ".weight_scale_inv"): scale[:, 0, :, 0].contiguous()}


def needs(library: str, extra: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"the extra {extra} is not installed")


@needs("bitsandbytes", "bnb")
@pytest.mark.parametrize(("bits", "kind"), [(4, "Params4bit"), (8, "Int8Params")])
def test_weights_that_bitsandbytes_has_saved_stay_packed(tmp_path: Path, bits: int, kind: str) -> None:
    plain = tmp_path / "plain"  # its kernels for CPUs work on blocks
    shape = {"hidden_size": BLOCK, "intermediate_size": 2 * BLOCK, "num_key_value_heads": 2}
    LlamaForCausalLM(llama(**shape, eos_token_id=None)).save_pretrained(plain)
    settings = BitsAndBytesConfig(
        load_in_4bit=bits == 4, load_in_8bit=bits == 8, bnb_4bit_compute_dtype=torch.float32, bnb_4bit_quant_type="nf4"
    )
    before = AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, device_map={"": "cpu"})
    before.save_pretrained(tmp_path / "packed")
    loaded = load_model(resolve(str(tmp_path / "packed")), None, CPU)
    assert type(loaded.model.model.layers[0].mlp.up_proj.weight).__name__ == kind
    found, expected = (network(TEXT).logits.float() for network in (loaded.model, before))
    assert (found - expected).std() < 0.03 * expected.std()  # its passes round activations
    assert loaded.weights == f"bitsandbytes {bits} bit"


@needs("compressed_tensors", "compressed")
def test_weights_that_compressed_tensors_has_saved_are_read(tmp_path: Path) -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    model = AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path / "plain"), dtype=torch.float32)
    before = model(TEXT).logits
    weights = QuantizationArgs(num_bits=8, symmetric=True, strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    apply_quantization_config(model, QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"]))
    for layer in model.modules():
        if hasattr(layer, "weight_scale"):
            layer.weight_scale.data.copy_(layer.weight.data.abs().amax(1, keepdim=True) / 127)
    packing = ModelCompressor.from_pretrained_model(model, quantization_format="int-quantized")
    packing.compress_model(model)
    model.save_pretrained(tmp_path / "packed")
    packing.update_config(tmp_path / "packed")
    loaded = load_model(resolve(str(tmp_path / "packed")), None, CPU)
    assert loaded.weights == "compressed-tensors, dequantised"
    found = loaded.model(TEXT).logits
    torch.testing.assert_close(found, before, rtol=0.05, atol=0.02)
    assert not torch.equal(found, before)


@needs("torchao", "quant")
def test_weights_that_torchao_has_saved_stay_packed_and_are_not_compiled(tmp_path: Path) -> None:
    from torchao.quantization import Int8WeightOnlyConfig

    plain = save_tiny(tmp_path / "plain")
    settings = TorchAoConfig(Int8WeightOnlyConfig(set_inductor_config=False))
    before = AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, dtype=torch.float32)
    before.save_pretrained(tmp_path / "packed")
    checkpoint = resolve(str(tmp_path / "packed"))
    loaded = load_model(checkpoint, None, CPU)
    assert type(loaded.model.model.layers[0].mlp.up_proj.weight).__name__ == "Int8Tensor"
    assert torch.equal(loaded.model(TEXT).logits, before(TEXT).logits)
    assert loaded.weights == "torchao"
    with pytest.raises(UsageError, match="is quantised by torchao, and a compiler that freezes weights may unpack"):
        quantise.refuse_compiled(checkpoint, load_config(checkpoint), CPU)
