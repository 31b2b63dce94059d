"""Packed matrices: what plain ones compute, shared where those are, and the networks themselves are not touched."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from specbench.backends import memory, tiers
from specbench.backends.native import Native, open_pair
from specbench.models.execution import few_rows
from specbench.models.execution.few_rows import Matrix, dtypes, pays
from specbench.models.heads.parts import Borrowed
from specbench.models.network import packed
from specbench.models.network.packed import PackedHead, PackedLinear, packable, twins
from specbench.models.network.sampling import reduce_head
from specbench.models.network.skipping import with_layers
from specbench.spec import RunSpec
from tests.support.heads import write_head
from tests.support.tiers import NEEDS_COMPILER, AsRecorded
from tests.support.tiny import network
from tests.support.tinypair import Pair

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="this torch is built without oneDNN")

ERROR = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
IDS = torch.tensor([[1, 2, 3, 4, 5]])


@pytest.mark.processor
@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 0), (2, 70)], ids=str)
def test_a_packed_layer_computes_what_the_plain_one_does(
    shape: tuple[int, ...], bias: bool, dtype: torch.dtype
) -> None:
    if dtype not in dtypes():
        pytest.skip(f"this processor packs no {dtype}")
    torch.manual_seed(0)
    layer = nn.Linear(33, 50, bias=bias, dtype=dtype).requires_grad_(False)
    x = torch.randn(*shape, 33, dtype=dtype)
    found, expected = PackedLinear(layer, Matrix.of(layer.weight))(x), layer(x)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert ((found - expected).abs() <= ERROR[dtype] * (1 + expected.abs())).all()
    wide = torch.randn(*shape, 66, dtype=dtype)[..., ::2]  # as a slice of something wider
    assert torch.allclose(F.linear(wide, layer.weight, layer.bias), PackedLinear(layer, Matrix.of(layer.weight))(wide),
                          atol=10 * ERROR[dtype])  # fmt: skip


@pytest.mark.processor
@pytest.mark.parametrize("width", [33, 1500])
@pytest.mark.parametrize("dtype", ERROR, ids=str)
def test_a_single_row_among_others_is_rounded_as_a_row_of_a_verification(dtype: torch.dtype, width: int) -> None:
    if dtype not in dtypes():
        pytest.skip(f"this processor packs no {dtype}")
    torch.manual_seed(0)
    matrix, rows = Matrix.of(torch.randn(50, width, dtype=dtype)), torch.randn(1, 5, width, dtype=dtype)
    for count in few_rows.ROWS if few_rows.rounded_alike(matrix) else few_rows.ROWS[1:]:
        matrix.rows = count
        alone = torch.cat([matrix(row[None, None]) for row in rows[0]], 1)
        assert torch.equal(alone, matrix(rows)), count


@pytest.mark.parametrize(
    ("alike", "seconds", "rows"),
    [
        (True, {1: 1.0, 4: 2.0, 5: 2.0}, 1),
        (True, {1: 1.0, 4: 0.99, 5: 2.0}, 4),
        (True, {1: 2.0, 4: 2.0, 5: 1.0}, 5),
        (False, {1: 1.0, 4: 0.91, 5: 2.0}, 1),
        (False, {1: 1.0, 4: 2.0, 5: 0.89}, 5),
    ],
)
def test_a_single_row_is_multiplied_as_the_fastest_number_of_rows(
    alike: bool, seconds: dict[int, float], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def timed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        clock[0] += seconds[x.numel() // x.shape[-1]]
        return F.linear(x, weight, bias)

    monkeypatch.setattr(few_rows, "product", timed)
    monkeypatch.setattr(few_rows, "rounded_alike", lambda _: alike)
    matrices = [Matrix(torch.randn(2, 3)) for _ in range(2)]
    few_rows.settle(matrices, now=lambda: clock[0])
    assert [one.rows for one in matrices] == [rows] * 2


def test_layers_that_read_the_same_are_one_product_and_any_other_use_is_right() -> None:
    torch.manual_seed(0)
    block = nn.Module()
    block.gate_proj, block.up_proj = (nn.Linear(9, size).requires_grad_(False) for size in (5, 7))
    packed = twins({"draft": block})["draft"]
    products: list[torch.Tensor] = []
    matrix = packed.gate_proj.group.matrix

    def counted(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        products.append(x)
        return matrix(x, bias)

    packed.gate_proj.group.matrix = counted
    x, other = torch.randn(2, 3, 9), torch.randn(1, 9)

    def used(*calls: tuple[str, torch.Tensor]) -> int:
        products.clear()
        for name, given in calls:
            assert torch.allclose(getattr(packed, name)(given), getattr(block, name)(given), atol=1e-5), name
        return len(products)

    assert used(("gate_proj", x), ("up_proj", x)) == 1
    assert packed.gate_proj.group._read is None, "nothing is kept once all have had their part"
    assert used(("up_proj", x), ("gate_proj", x)) == 1
    assert used(("gate_proj", x), ("gate_proj", x)) == 2
    assert used(("gate_proj", other), ("up_proj", x), ("gate_proj", x)) == 2
    assert used(("gate_proj", x), ("up_proj", x.clone())) == 2
    again = copy.deepcopy(packed)
    assert again.gate_proj.group is again.up_proj.group is not packed.gate_proj.group


def in_float(name: str) -> Any:
    return copy.deepcopy(network(name, 12, 0)).float().requires_grad_(False)


def matrices(net: nn.Module) -> dict[str, Any]:
    return {name: part.matrix for name, part in net.named_modules() if isinstance(part, PackedLinear | PackedHead)}


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3-moe"])
def test_a_twin_gives_the_logits_of_its_network_on_the_same_tensors(name: str) -> None:
    net = in_float(name)
    before, modules = net(input_ids=IDS).logits, list(net.modules())
    twin = twins({"target": net})["target"]
    assert matrices(twin)
    assert (twin(input_ids=IDS).logits - before).abs().max() < 1e-5
    assert list(net.modules()) == modules, "the network itself stays as it is"
    assert torch.equal(net(input_ids=IDS).logits, before)
    theirs = dict(twin.named_parameters())
    assert {name: id(weight) for name, weight in net.named_parameters()} == {n: id(w) for n, w in theirs.items()}


def test_networks_that_share_weights_share_their_packed_copies() -> None:
    net = in_float("llama")
    found = twins({"target": net, "target[:1]": with_layers(net, [0])})
    whole, few = (matrices(found[name]) for name in ("target", "target[:1]"))
    assert few
    assert len(few) < len(whole)
    assert all(matrix is whole[name] for name, matrix in few.items())
    again = copy.deepcopy(found["target"])
    assert all(matrix is whole[name] for name, matrix in matrices(again).items()), "nobody can copy what is packed"


def test_heads_that_know_some_tokens_are_packed_and_heads_borrow_from_the_twin_of_their_target() -> None:
    net = reduce_head(in_float("llama"), (0, 2, 3, 7))
    before, twin = net(input_ids=IDS).logits, twins({"draft": net})["draft"]
    assert isinstance(twin.get_output_embeddings(), PackedHead)
    after = twin(input_ids=IDS).logits
    assert torch.equal(after.isinf(), before.isinf())
    assert (after - before)[before.isfinite()].abs().max() < 1e-5
    net = in_float("llama")
    head = nn.Module()
    head.target = Borrowed(net)
    found = twins({"target": net, "draft": head})
    assert found["draft"].target.network is found["target"]
    assert copy.deepcopy(head).target.network is net, "any other copy borrows from where it did"


def test_only_plain_layers_are_packed() -> None:
    plain = nn.Linear(4, 4).requires_grad_(False)
    heard = copy.deepcopy(plain)
    heard.register_forward_hook(lambda *_: None)

    class Other(nn.Linear):
        """One that may compute something else."""

    others = [heard, Other(4, 4), nn.Linear(4, 4, device="meta"), nn.Linear(4, 4).double(), nn.Linear(4, 4).half()]
    assert packable(plain)
    assert not any(packable(layer) for layer in [*others, nn.Embedding(4, 4)])


@pytest.mark.parametrize(("maker", "faster"), [("AuthenticAMD", True), ("GenuineIntel", False), ("", False)])
def test_it_pays_where_it_was_measured_to(maker: str, faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "maker", lambda: maker)
    assert pays.__wrapped__() is faster


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is faster with packed matrices."""
    monkeypatch.setattr(few_rows, "pays", lambda: True)


def opened(pair: Pair, **more: Any) -> Native:
    native = open_pair([RunSpec(target=str(pair.target), draft=str(pair.draft), max_new_tokens=24, dtype="float32",
                                **{"tier": "eager", **more})])  # fmt: skip
    native.load()
    return native


@pytest.mark.usefixtures("paying")
def test_eager_passes_are_packed_and_decode_the_same_text(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    native, spec = opened(pair), RunSpec(method="chain", k=4, max_new_tokens=24, dtype="float32", tier="eager")
    method = native.method(spec)
    assert matrices(method.model.network)
    assert matrices(method.drafter.model.network)
    assert not matrices(native.network("target")), "who looks into networks finds them as they are stored"
    demand = native.demand([])
    assert demand is not None
    held = {part.role: part.size for part in demand.parts if part.kind == "packed weights"}
    assert held.keys() == {"target", "draft"}
    assert all(held.values())
    found = [trace.tokens for trace in native.prepare(spec, 8)([[1, 2, 3]], [0])]
    monkeypatch.setattr(few_rows, "pays", lambda: False)
    plain = opened(pair)
    assert not plain.tier.packed
    assert not matrices(plain.method(spec).model.network)
    assert [trace.tokens for trace in plain.prepare(spec, 8)([[1, 2, 3]], [0])] == found


@pytest.mark.usefixtures("paying")
def test_weights_are_released_where_packed_copies_replace_them_and_come_back_to_the_bit(pair: Pair) -> None:
    native, spec = opened(pair), RunSpec(method="chain", k=4, max_new_tokens=24, dtype="float32", tier="eager")
    before = {name: weight.clone() for name, weight in native.modules["target"].named_parameters()}
    run = native.prepare(spec, 8)
    found = [trace.tokens for trace in run([[1, 2, 3]], [0])]
    gone = {name for name, weight in native.modules["target"].named_parameters() if not weight.numel()}
    assert "model.layers.0.self_attn.q_proj.weight" in gone
    assert not any("embed" in name or "norm" in name for name in gone)
    layer = native.passing()["target"].model.layers[0].self_attn
    for name in ("k_proj", "o_proj"):
        assert torch.equal(getattr(layer, name).weight, before[f"model.layers.0.self_attn.{name}.weight"])
    looked_at = dict(native.network("target").named_parameters())
    assert all(torch.equal(looked_at[name], weight) for name, weight in before.items())
    assert [trace.tokens for trace in run([[1, 2, 3]], [0])] == found
    assert not native.releases, "what somebody has looked at stays"


@pytest.mark.usefixtures("paying")
@pytest.mark.parametrize("more", [{"method": "online"}, {"method": "early-exit-shared"}])
def test_weights_stay_where_drafts_learn_or_are_layers_of_the_target(pair: Pair, more: dict[str, Any]) -> None:
    native = opened(pair, **more)
    native.passing()
    assert all(weight.numel() for net in native.modules.values() for weight in net.parameters())


@NEEDS_COMPILER
@pytest.mark.usefixtures("paying")
def test_prompts_of_compiled_rounds_are_read_packed_and_what_is_compiled_stays_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, prompt = RunSpec(method="chain", k=4, max_new_tokens=24, dtype="float32", tier="compile"), [[1, 2, 3] * 9]

    def decoded() -> tuple[Native, list[Any], list[torch.Size]]:
        codes = AsRecorded()
        monkeypatch.setattr(tiers, "Store", lambda *_: codes)
        native, products = opened(pair, tier="compile"), []
        product = few_rows.product
        monkeypatch.setattr(few_rows, "product", lambda x, *rest: products.append(x.shape) or product(x, *rest))
        run = native.prepare(spec, 40)
        products.clear()
        found = [trace.tokens for trace in run(prompt, [0])]
        assert all("mkldnn" not in str(node.target) for region in codes.regions for node in region.graph.nodes)
        return native, [*found, [str(region.graph) for region in codes.regions]], products

    native, found, products = decoded()
    assert native.tier.name == "compile"
    assert products
    assert {tuple(shape[:-1]) for shape in products} <= {(1, 27), (1, 26), (1, 1)}, "the prompt, by eager passes"
    assert packed.PROMPTS in native.notes(spec)
    demand = native.demand([])
    assert demand is not None
    monkeypatch.setattr(few_rows, "pays", lambda: False)
    plain, same, none = decoded()
    assert none == []
    assert same == found
    without = plain.demand([])
    assert without is not None
    sizes = [sum(part.size for part in one.parts if part.kind == "packed weights") for one in (demand, without)]
    assert sizes[0] == 2 * sizes[1] > 0


@pytest.mark.parametrize("reduced", [False, True], ids=["", "a head that knows some tokens"])
def test_a_packed_layer_is_recorded_as_the_plain_one_by_either_tracer(reduced: bool) -> None:
    net = in_float("llama")
    if reduced:
        reduce_head(net, (0, 2, 3, 7))
    twin = twins({"target": net}, compiled=True)["target"]
    assert matrices(twin)
    before = net.lm_head(hidden := torch.randn(1, 5, net.config.hidden_size))
    graph = make_fx(twin.lm_head)(hidden)
    assert all("mkldnn" not in str(node.target) for node in graph.graph.nodes)
    assert torch.equal(graph(hidden), before)
    found: list[Any] = []

    def seen(module: Any, inputs: Any) -> Any:
        found.extend(str(node.target) for node in module.graph.nodes)
        return module.forward

    assert torch.equal(torch.compile(twin.lm_head, backend=seen, fullgraph=True)(hidden), before)
    assert found
    assert all("mkldnn" not in name for name in found)


@pytest.mark.usefixtures("paying")
def test_a_draft_that_learns_is_read_as_it_changes(pair: Pair) -> None:
    native = opened(pair, method="online")
    found = native.passing({"draft"})
    assert matrices(found["target"])
    assert not matrices(found["draft"])
    assert found["draft"] is native.network("draft")
    before = native.passing()["target"]
    native.modules["target[:1]"] = with_layers(native.network("target"), [0])
    assert matrices(native.passing()["target[:1]"])
    assert native.passing()["target"] is not before


@pytest.mark.usefixtures("paying")
def test_where_memory_is_short_weights_are_not_packed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    native = opened(pair)
    assert native.demand([]) is not None
    assert native.tier.packed
    monkeypatch.setattr(memory, "free_memory", lambda device: 1)
    demand = native.demand([])
    assert demand is not None
    assert "packed weights" not in {part.kind for part in demand.parts}
    assert not native.tier.packed
    assert native.warnings[-1] == packed.TOO_LARGE
    assert not matrices(native.passing()["target"])


@pytest.mark.usefixtures("paying")
def test_divided_weights_and_those_on_a_gpu_are_not_packed() -> None:
    spec, cpu = RunSpec(), torch.device("cpu")
    assert tiers.packs(spec, "eager", cpu)
    assert tiers.packs(spec, "compile", cpu), "prompts are read by eager passes there, too"
    assert not tiers.packs(spec, "compile", torch.device("cuda"))
    assert not tiers.packs(spec, "eager", torch.device("cuda"))
    assert not tiers.packs(spec, "graph", cpu)
    assert not tiers.packs(spec.with_(device_map="auto"), "eager", cpu)


@pytest.mark.usefixtures("paying")
@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_trained_heads_are_packed_with_their_target(kind: str, pair: Pair, tmp_path: Path) -> None:
    config = opened(pair).network("target").config
    aux = {"aux": (0, 1)} if kind == "eagle3" else {}
    head = write_head(tmp_path / "head", kind, config, **aux)
    native = open_pair([RunSpec(target=str(pair.target), draft=str(head), dtype="float32", tier="eager", k=2)])
    native.load()
    found = native.passing()
    assert matrices(found["draft"])
    assert found["draft"].target.network is found["target"]
