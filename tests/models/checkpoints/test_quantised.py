"""Checkpoints that are stored quantised: they load where their library is there, else the extra is named."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaForCausalLM, TorchAoConfig

from specbench.errors import UsageError
from specbench.models.checkpoints import names, quantise
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.divided import How
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint, resolve
from specbench.models.network.probe import rollback_of
from tests.support.checkpoints import CPU, WEIGHTS, llama, refusal_of, save_tiny

TEXT = torch.tensor([[5, 9, 2, 40, 7]])
BLOCK = 128
FP8 = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}


def declare(folder: Path, **quantization: object) -> Path:
    """Say in config.json that the weights are quantised."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantization}))
    return folder


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            "gptq, which needs gptqmodel and optimum: pip install",
        ),
        ({"quant_method": "awq", "bits": 4}, "awq, which needs gptqmodel and optimum: pip install"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, which needs bitsandbytes: pip install"),
        ({"load_in_8bit": True}, "bitsandbytes, which needs bitsandbytes: pip install 'specbench-decoding[bnb]'"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors, which needs compressed-tensors: pip install"),
        ({"quant_method": "torchao", "quant_type": {}}, "torchao, which needs torchao: pip install"),
        ({"quant_method": "nvfp4"}, "nvfp4, which needs a GPU"),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8, which needs a GPU"),
        ({"quant_method": "evil" * 99}, f"by '{'evil' * 20}', which transformers does not know: it reads awq, "),
    ],
)
def test_what_a_checkpoint_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(names, "find_spec", lambda _: None)
    folder = declare(save_tiny(tmp_path / "tiny"), **method)
    assert message in refusal_of(load_model, Checkpoint("tiny", str(folder)), None, CPU)


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
