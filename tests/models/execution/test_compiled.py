"""Tiers: which one is chosen and why, and that a function is compiled once, as one graph, for itself alone."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from specbench.decoding.decode import decode
from specbench.decoding.randomness import seeded
from specbench.errors import UsageError
from specbench.models.execution import compiled as execution
from specbench.models.execution.compiled import Compiled, Name, choose, fast_bfloat16, reaches
from tests.support.tiers import NEEDS_COMPILER, bigrams, compiled, graphs, seen, static_methods, whole
from tests.support.toys import CPU, Toy

CUDA = torch.device("cuda", 0)
MANY = 12  # more than the eight places that dynamo has for one code object


def times(k: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x * k


def test_functions_of_one_definition_are_compiled_apart() -> None:
    before, x = graphs(), torch.ones(3)
    made = [Compiled(times(k), CPU, "eager") for k in range(MANY)]
    for _ in range(3):
        assert [int(function(x)[0]) for function in made] == list(range(MANY))
        assert graphs() == before + MANY


def test_with_shared_code_they_would_be_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(execution, "unshared", lambda function: function)
    made = [Compiled(times(k), CPU, "eager") for k in (2, 3)]
    assert [int(function(torch.ones(3))[0]) for function in made] != [2, 3]


def test_only_the_first_call_compiles_and_what_is_changed_in_place_is_changed_in_every_call() -> None:
    place = torch.zeros(2)

    def add() -> Tensor:
        place.add_(1)
        return place * 2

    function = Compiled(add, CPU, "aot_eager")
    assert [function().tolist() for _ in range(3)] == [[2, 2], [4, 4], [6, 6]]
    assert place.tolist() == [3, 3]
    function, before = Compiled(times(5), CPU, "eager"), graphs()
    assert [int(function(torch.full((1,), x))) for x in (1.0, 2.0, 3.0)] == [5, 10, 15]
    assert graphs() == before + 1


@pytest.mark.slow
def test_every_lookahead_and_reach_is_one_graph_whatever_is_decoded() -> None:
    before, made, expected = graphs(), [], 0
    for k in (1, 3, MANY):
        method, steps = static_methods(bigrams(), k)["chain"], (32, 64) if k < 4 else (64,)
        made.append((method, whole(method, compiled("eager"), longest=9, new=40, eos=[7], reaches=steps)))
        expected += len(steps)
        assert graphs() == before + expected
    for method, rounds in made:
        plain = static_methods(bigrams(), method.drafter.room)["chain"]
        for seed, prompt in enumerate([[1], [2, 3, 4, 5, 6, 7, 1, 2]]):
            (fast,), (slow,) = (
                decode(m, [prompt], new=40, eos=[7], rng=seeded([seed], CPU), device=CPU, rounds=r)
                for m, r in ((method, rounds), (plain, None))
            )
            assert seen(fast) == seen(slow)
    assert graphs() == before + expected


def test_a_round_in_which_the_host_reads_is_no_graph_and_says_so() -> None:
    method = static_methods({"target": Toy(torch.full((4, 4), 0.25)), "draft": Toy(torch.ones(4, 4))}, 1)["baseline"]
    with pytest.raises(TorchDynamoException, match="data-dependent"):
        whole(method, compiled("eager"), longest=2, new=4)


# Which tier, and how far passes read.


def compilers(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(execution.shutil, "which", lambda name: f"/bin/{name}" if name in names else None)


@pytest.mark.parametrize("compiler", ["g++", "clang++", "c++"])
def test_auto_compiles_where_there_is_a_compiler(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers(monkeypatch, compiler)
    assert choose("auto", CPU) == ("compile", execution.COMPILING)
    assert choose("compile", CPU) == ("compile", execution.COMPILING)


def test_without_a_compiler_auto_is_eager_on_a_cpu_and_graphs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    compilers(monkeypatch)
    tier, why = choose("auto", CPU)
    assert tier == "eager"
    assert "C++ compiler (g++ or clang++)" in why
    compilers(monkeypatch)
    assert choose("auto", CUDA)[0] == "graph"
    assert choose("graph", CUDA) == ("graph", execution.GRAPHS)
    compilers(monkeypatch)
    assert choose("eager", CPU) == choose("eager", CUDA) == ("eager", execution.EAGER)


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ("graph", "--tier graph needs a CUDA device, not cpu: use --tier compile, eager or auto"),
        ("compile", "--tier compile: torch needs a C++ compiler"),
    ],
)
def test_a_tier_that_is_not_to_be_had_is_refused_in_one_line(
    tier: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers(monkeypatch)
    with pytest.raises(UsageError) as refusal:
        choose(tier, CPU)
    assert str(refusal.value).startswith(said)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("length", "tier", "steps"),
    [
        (64, "compile", (64,)),
        (512, "compile", (512,)),
        (576, "compile", (512, 576)),
        (3000, "compile", (512, 1024, 2048, 3000)),
        (256, "graph", (256,)),
        (320, "graph", (256, 320)),
        (1024, "graph", (256, 512, 768, 1024)),
        (4000, "graph", (*range(256, 2049, 256), 2560, 3072, 3840, 4000)),
    ],
)
def test_reaches_rise_up_to_the_length(length: int, tier: Name, steps: tuple[int, ...]) -> None:
    assert reaches(length, tier) == steps


def test_long_contexts_have_few_reaches() -> None:
    found = reaches(32_768, "graph")
    assert len(found) < 24
    assert all(b <= 1.25 * a for a, b in pairwise(found) if a >= 2048)


@pytest.mark.parametrize(
    ("found", "fast"),
    [
        ({}, False),
        ({"avx2": True}, False),
        ({"amx_bf16": True}, True),
        ({"avx512_bf16": True}, False),
    ],
)
def test_bfloat16_is_fast_where_the_processor_multiplies_it(
    found: dict[str, bool], fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "capabilities", lambda: found)
    assert fast_bfloat16(CPU) is fast
    assert not fast_bfloat16(CUDA)


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_dtype_for_which_inductor_has_no_matrix_kernels_is_compiled_all_the_same(dtype: torch.dtype) -> None:
    layer, x = torch.nn.Linear(16, 16, dtype=dtype).eval(), torch.ones(2, 16, dtype=dtype)
    with torch.no_grad():
        assert torch.allclose(Compiled(layer.forward, CPU)(x), layer(x))
