"""Functions compiled region by region: they do what they did, equal regions are one, and nothing goes stale."""

import json
import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn.functional import linear

from specbench.decoding.timing import WallClock
from specbench.decoding.types import point_mass
from specbench.models.execution import compile_cache, region_code
from specbench.models.execution.compiled import by_few_rows, settings
from specbench.models.execution.region_code import Code, Layout, Regional, Regions, Store, compiled, layout
from specbench.models.execution.regions import Region, UncutError, cut, trace
from tests.laws.mutants import Mutant, catches, mutants
from tests.support.frontdoor import Command
from tests.support.tiers import NEEDS_COMPILER, AsRecorded, never
from tests.support.toys import CPU

Function = Callable[..., Any]


def network(layers: int = 3, **more: Any) -> Any:
    shape = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2} | more
    torch.manual_seed(1)
    return hf.LlamaForCausalLM(hf.LlamaConfig(num_hidden_layers=layers, **shape)).eval().requires_grad_(False)


def passes(net: Any) -> Function:
    """Passes with a mask and positions of our own: transformers reads values to make them."""

    def run(ids: Tensor) -> Tensor:
        hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
        mask = torch.zeros(1, 1, 5, 5, dtype=net.dtype).masked_fill(hidden, torch.finfo(net.dtype).min)
        places = torch.arange(5)[None]
        found: Tensor = net(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False).logits
        return found

    return run


def regional(function: Function, codes: Any = None, frozen: bool = True) -> tuple[Regional, AsRecorded]:
    codes = AsRecorded() if codes is None else codes
    return Regional(function, Regions(codes), never, frozen), codes


def ids(seed: int = 0) -> Tensor:
    return torch.randint(24, (1, 5), generator=torch.Generator().manual_seed(seed))


class Counter:
    """Something with a state, views of it, and laps: a little of everything that a round does."""

    def __init__(self) -> None:
        self.clock = WallClock()
        self.state, self.weight = torch.arange(12.0).reshape(3, 4), nn.Parameter(torch.eye(4) * 2, False)

    def __call__(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        row, made = self.state[1], x + 1
        view = made.reshape(2, 2).t()
        self.clock.lap("first", made)
        row.add_(x)  # what it is of is written by another name
        first, second = made.split(2)
        made.mul_(3)
        self.clock.lap("second", row)
        view[0] += 10
        product = linear(self.state, self.weight)
        self.clock.lap("third", product)
        unused = product * 5  # noqa: F841
        return view, {"row": row + first.sum(), "all": product.t(), "second": second}


def test_a_function_does_in_every_call_what_it_did() -> None:
    plain, cut_up = Counter(), Counter()
    ready, codes = regional(cut_up)
    for number in range(4):
        x = torch.arange(4.0) + number
        (view, rest), (same, others) = plain(x), ready(x)
        assert torch.equal(view, same)
        assert rest.keys() == others.keys()
        assert all(torch.equal(rest[name], others[name]) for name in rest)
        assert torch.equal(plain.state, cut_up.state)
    assert len(codes.regions) == 4


def test_laps_lie_between_the_regions_in_which_their_work_is_done() -> None:
    function = Counter()
    ready, _ = regional(function)
    ready(torch.ones(4))
    function.clock.start()
    for _ in range(2):
        ready(torch.ones(4))
    seconds, spans = function.clock.stop()
    assert list(spans) == ["first", "second", "third"]
    assert 0 < sum(spans.values()) <= seconds
    ready, _ = regional(Counter())
    ready(torch.ones(4))
    given, (view, _) = torch.ones(4), ready(torch.ones(4))
    ready(given)
    program = ready._call
    held = [one for one in program.values if one is not None]  # type: ignore[union-attr]
    assert not any(one is given for one in held)
    assert view is not None


def test_layers_that_do_the_same_are_one_region() -> None:
    plan = cut(trace(passes(network(4)), ids()))
    keys = [step.key for step in plan.steps if isinstance(step, Region)]
    assert len(keys) == 6  # before the layers, four of them, and the head
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    "other",
    [network(2, hidden_size=32), network(2, num_attention_heads=4), network(2).double(), network(2, rms_norm_eps=0.1)],
    ids=["width", "heads", "dtype", "a number"],
)
def test_layers_that_do_something_else_are_other_regions(other: Any) -> None:
    first, second = (
        {step.key for step in cut(trace(passes(net), ids())).steps if isinstance(step, Region)}
        for net in (network(2), other)
    )
    assert len(first - second) >= 1


def key(x: Tensor, weight: Tensor) -> str:
    frozen = nn.Parameter(weight, False)
    (found,) = cut(trace(lambda x: linear(x * 2, frozen), x)).steps
    assert isinstance(found, Region)
    assert len(found.weights) == 1
    return found.key


SQUARE = torch.ones(3, 3)
OTHERS = {
    "shape": (torch.ones(2, 3), SQUARE),
    "strides": (SQUARE.t(), SQUARE),
    "the shape of a weight": (SQUARE, torch.ones(2, 3)),
    "the strides of a weight": (SQUARE, SQUARE.t()),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_same_operators_on_other_tensors_are_other_regions(what: str) -> None:
    assert key(SQUARE, SQUARE) == key(SQUARE.clone(), SQUARE.clone())
    assert key(SQUARE, SQUARE) != key(*OTHERS[what])


def unlike(what: str) -> Callable[[], None]:
    return partial(test_the_same_operators_on_other_tensors_are_other_regions, what)


KEY = Region.key.func
MUTANTS: dict[str, Mutant] = {
    "a key without shapes": (KEY, "{tuple(x.shape)} ", "", unlike("shape")),
    "a key without strides": (KEY, "{x.stride()} ", "", unlike("strides")),
    "a key without weights": (KEY, "(*self.like, *self.weights)", "self.like", unlike("the shape of a weight")),
}


@mutants(MUTANTS)
def test_a_key_that_says_less_is_caught(mutant: Mutant) -> None:
    catches(*mutant)


def test_other_weights_and_other_processes_have_the_same_regions() -> None:
    nets = [network(2), network(2)]
    for parameter in nets[1].parameters():
        parameter.data.normal_()
    keys = [[step.key for step in cut(trace(passes(net), ids(7))).steps if isinstance(step, Region)] for net in nets]
    assert keys[0] == keys[1]


def test_weights_that_may_change_are_read_in_every_call() -> None:
    net = network()
    ready, codes = regional(passes(net), frozen=False)
    assert not any(region.weights for region in codes.regions)
    ready(ids())
    for parameter in net.parameters():
        parameter.data.add_(0.1)
    assert torch.equal(ready(ids(1)), passes(net)(ids(1)))


def test_a_function_that_reads_a_value_is_made_ready_the_other_way_and_it_is_said_why() -> None:
    told: list[str] = []
    ready = Regional(
        lambda x: x * int(x.sum()), Regions(AsRecorded()), lambda function: function, on_failure=told.append
    )
    assert [ready(torch.ones(n)).tolist() for n in (2, 3)] == [[2, 2], [3, 3, 3]]
    assert len(told) == 1
    assert "value" in told[0]


def test_what_is_written_under_two_names_or_is_a_weight_is_not_cut() -> None:
    whole = torch.zeros(4)
    part = whole[:2]

    def function(x: Tensor) -> Tensor:
        part.add_(x)
        return whole * 2

    with pytest.raises(UncutError, match="two names"):
        cut(trace(function, torch.ones(2)))
    weight = nn.Parameter(torch.zeros(2, 2), False)

    def function(x: Tensor) -> Tensor:
        weight.add_(x)
        return x @ weight

    with pytest.raises(UncutError):
        cut(trace(function, torch.ones(2, 2)))


# Code.


def test_a_layout_puts_the_columns_of_a_block_side_by_side() -> None:
    weight = torch.arange(24.0).reshape(6, 4)  # [n, k]
    made = Layout((0,), block=4).made([weight])
    assert made.shape == (2, 4, 4)
    assert torch.equal(made[0], weight[:4].t())
    assert torch.equal(made[1, :, :2], weight[4:].t())
    assert not made[1, :, 2:].any()
    woven = Layout((0,), block=4, pairs=2).made([weight])
    assert woven[0].flatten()[:4].tolist() == [0, 1, 4, 5]  # two of the first column, two of the second


@pytest.mark.parametrize("made", [
    Layout((1,), alone=True), Layout((1,), transposed=True, alone=True), Layout((0, 1)), Layout((0, 1), block=4),
    Layout((1,), block=4, pairs=2, alone=True)], ids=str)  # fmt: skip
def test_a_layout_is_found_from_what_it_makes(made: Layout) -> None:
    weights = [torch.arange(24.0).reshape(6, 4), torch.arange(100.0, 132.0).reshape(8, 4)]
    found = layout(made.made(weights), weights)
    assert torch.equal(found.made(weights), made.made(weights))
    assert found.made(weights).stride() == made.made(weights).stride()


@NEEDS_COMPILER
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_code_of_an_earlier_process_serves_other_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    nets = [network(hidden_size=32, intermediate_size=64).to(dtype) for _ in range(2)]
    for parameter in nets[1].parameters():
        parameter.data.normal_(0, 0.1)
    counts = []
    for net in nets:
        store = Store(settings(CPU), tmp_path)
        ready, _ = regional(passes(net), store)
        for seed in range(3):
            made, plain = ready(ids(seed)), passes(net)(ids(seed))
            assert torch.allclose(made, plain, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)
        counts.append(store.compiled)
    assert counts == [3, 0]


@NEEDS_COMPILER
def test_code_that_gives_another_type_is_refused() -> None:
    (step,) = cut(trace(lambda ids: point_mass(ids, 24, torch.float32), ids())).steps
    assert isinstance(step, Region)
    assert compiled(step, settings(CPU)).source
    (output,) = step.outputs
    output.meta["val"] = output.meta["val"].long()  # as inductor 2.11 made it
    with pytest.raises(UncutError, match="another type"):
        compiled(step, settings(CPU))


class Stub:
    """In place of the compiler."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, region: Region, settings: Any) -> Code:
        self.calls += 1
        return Code("call = lambda inputs: [w * n]", {"w": Layout((0,), True)}, {"n": 2})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    monkeypatch.setattr(region_code, "compiled", stub)
    return stub


def region() -> Region:
    weight = nn.Parameter(torch.ones(2, 3), False)
    (found,) = (step for step in cut(trace(lambda x: linear(x, weight), torch.ones(1, 3))).steps)
    assert isinstance(found, Region)
    return found


def test_what_was_compiled_is_found_again(compiler: Stub, tmp_path: Path) -> None:
    for _ in range(2):
        store = Store({"a": 1}, tmp_path)
        call = Regions(store).call(region(), store.code(region()))
        assert call([])[0].tolist() == [[2, 2]] * 3
    assert compiler.calls == 1
    Store({"a": 2}, tmp_path).code(region())
    assert compiler.calls == 2, "other settings make other code"


# name: (owner, attribute, value in another process, part of the source of the store that depends on it)
ELSEWHERE: dict[str, tuple[Any, str, Any, str]] = {
    "the threads": (torch, "get_num_threads", lambda: 77, "torch.get_num_threads()"),
    "the version of torch": (torch, "__version__", "9.9", "torch.__version__"),
    "the processor": (region_code, "capabilities", lambda: {"avx9": True}, "capabilities()"),
    "the GPUs": (region_code, "gpus", lambda: ["NVIDIA H100"], "gpus()"),
    "the products of few rows": (region_code, "by_few_rows", lambda: not by_few_rows(), "by_few_rows()"),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_code_for_another_process_is_another(
    what: str, compiler: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, value, _ = ELSEWHERE[what]
    Store({}, tmp_path).code(region())
    monkeypatch.setattr(owner, attribute, value)
    Store({}, tmp_path).code(region())
    assert compiler.calls == 2


@pytest.mark.mutant(test=test_code_for_another_process_is_another)
@pytest.mark.parametrize("what", ELSEWHERE, ids="a store that forgets {}".format)
def test_a_store_that_forgets_is_caught(
    what: str, compiler: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = partial(test_code_for_another_process_is_another, what, compiler, tmp_path, monkeypatch)
    catches(Store._where.fget, ELSEWHERE[what][-1], "0", check)  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"source": "x"}', '{"source": 1, "constants": {"w": {}}}'])
def test_a_damaged_file_is_compiled_anew(damage: str, compiler: Stub, tmp_path: Path) -> None:
    Store({}, tmp_path).code(region())
    (file,) = (tmp_path / "regions").iterdir()
    whole = file.read_text()
    file.write_text(damage)
    Store({}, tmp_path).code(region())
    assert (compiler.calls, file.read_text()) == (2, whole)
    assert json.loads(whole)["constants"] == {
        "w": {"weights": [0], "transposed": True, "block": 0, "pairs": 1, "alone": False}
    }


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(compiler: Stub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert Store({}, tmp_path / "file").code(region()).constants
    assert compiler.calls == 2


ALIEN = '{"source": "raise AssertionError(1)", "constants": {}, "numbers": {}}'


def kept(folder: Path) -> Path:
    """A file with code of a region in a folder of caches, in which something else was put since it was compiled."""
    Store({}, folder).code(region())
    (file,) = (folder / "regions").iterdir()
    file.write_text(ALIEN)
    return file


def linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


OPEN: dict[str, Callable[[Path], object]] = {
    "a folder for everybody": lambda folder: folder.chmod(0o777),
    "a folder for a group": lambda folder: folder.chmod(0o770),
    "a folder inside for everybody": lambda folder: (folder / "machine").chmod(0o777),
    "a link": linked,
    "a folder around it for everybody": lambda folder: folder.parent.chmod(0o777),
    "a file for everybody": lambda folder: [file.chmod(0o666) for file in (folder / "regions").iterdir()],
    "a folder of another user": lambda folder: None,
}


@pytest.mark.parametrize("name", OPEN)
def test_code_that_others_may_have_written_is_not_run(
    name: str, compiler: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "around" / "kept"
    file = kept(folder)
    monkeypatch.setenv(region_code.MACHINE_CODE, str(folder / "machine"))
    OPEN[name](folder)
    if "another user" in name:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    compile_cache.say_once.cache_clear()
    own = Store({}, folder)
    for _ in range(2):
        assert "raise" not in own.code(region()).source
    said = capsys.readouterr().err
    assert (compiler.calls, said.count("note: "), said.count("\n")) == (2, 1, 1)
    assert "compiled again" in said
    replaced = "file" in name
    assert (own.folder == folder, file.read_text() == ALIEN) == (replaced, not replaced)
    assert os.environ[region_code.MACHINE_CODE] == str(own.folder / "machine")
    assert stat.S_IMODE(own.folder.stat().st_mode) == 0o700


def test_folders_are_this_users_alone_whatever_they_were_and_whatever_the_umask(compiler: Stub, tmp_path: Path) -> None:
    Store({}, tmp_path / "kept").code(region())
    (tmp_path / "kept").chmod(0o755)
    Store({}, tmp_path / "kept").code(region())
    assert (compiler.calls, stat.S_IMODE((tmp_path / "kept").stat().st_mode)) == (1, 0o700)
    before = os.umask(0)
    try:
        for _ in range(2):
            Store({}, tmp_path / "kept").code(region())
    finally:
        os.umask(before)
    found = [path for path in (tmp_path / "kept").rglob("*") if path.name != compile_cache.LOOKED]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o700, 0o600}
    assert compiler.calls == 1


def test_the_processes_that_follow_use_the_same_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.NAME, str(tmp_path))
    compile_cache.place().mkdir()
    compile_cache.place().chmod(0o777)
    made = compile_cache.own_place()
    assert made == compile_cache.own_place() == compile_cache.place()
    assert not made.is_relative_to(tmp_path)


def test_weights_are_laid_out_once_as_long_as_anything_needs_them() -> None:
    regions, weights = Regions(AsRecorded()), [torch.ones(3, 4)]
    layout = Layout((0,), block=2)
    first = regions._constant(layout, weights)
    assert regions._constant(layout, weights) is first
    assert regions._constant(Layout((0,), block=4), weights) is not first
    del first
    assert not regions._constants


def test_headers_are_read_in_the_background_with_the_settings_of_regions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import async_compile, config

    seen, read = list[Any](), threading.Event()

    def compiling(self: Any, types: list[str], source: str) -> None:
        seen.extend((threading.current_thread() is threading.main_thread(), config.cpp.vec_isa_ok, source))
        read.set()
        raise RuntimeError("the first region will say so")

    monkeypatch.setattr(async_compile.AsyncCompile, "cpp_pybinding", compiling)
    Store(settings(CPU), tmp_path)
    region_code.read_headers.__wrapped__()
    assert read.wait(60)
    assert seen[:2] == [False, True]
    assert "cpp_prefix.h" in seen[2]


def test_no_code_is_loaded_before_that_of_all_regions_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    order, codes = list[str](), AsRecorded()
    monkeypatch.setattr(codes, "code", lambda region, make=codes.code: order.append("made") or make(region))
    regions = Regions(codes)
    monkeypatch.setattr(regions, "call", lambda *one, load=regions.call: order.append("loaded") or load(*one))
    Regional(Counter(), regions, never)(torch.ones(4))
    assert order == ["made"] * 4 + ["loaded"] * 4


def test_what_was_not_used_for_longest_is_deleted(tmp_path: Path) -> None:
    for age, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    compile_cache.tidy(tmp_path, bound=25)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", compile_cache.LOOKED]
    (tmp_path / "e").write_bytes(b"x" * 100)
    compile_cache.tidy(tmp_path, bound=25)
    assert (tmp_path / "e").exists(), "it looks once a day"


def test_the_command_shows_and_deletes_what_is_kept(
    command: Command, compiler: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compile_cache.NAME, str(tmp_path / "kept"))
    Store({}).code(region())
    other = tmp_path / "kept" / "somebody else's"
    other.touch()
    found = command("cache", "--format", "json")
    (row,) = json.loads(found.out)
    assert (row["folder"], row["compiled parts"]) == (str(tmp_path / "kept" / "specbench"), 1)
    assert "deleted: " in command("cache", "--clear").out
    assert list((tmp_path / "kept").iterdir()) == [other]
    assert json.loads(command("cache", "--format", "json").out)[0]["compiled parts"] == 0
