"""Methods that take turns have one memory for their caches: what they decode is what each decodes by itself."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from specbench.backends.base import Held
from specbench.backends.memory import kept_arms
from specbench.backends.native import Native, open_pair
from specbench.backends.tiers import Tier
from specbench.decoding.method_files import methods
from specbench.models.network.caches import OWN, Pool, RowStaticLayer
from specbench.spec import RunSpec
from tests.cuda.support import PROMPTS, said, spec_of, traces
from tests.support.cases import quick_or_slow
from tests.support.tinypair import Pair
from tests.support.toys import CPU

ALIKE = (  # with the caches of chain, tree-top or prompt-lookup
    "block", "fr-spec", "lenience", "relaxed", "relaxed-everywhere", "token-match", "typical", "sequoia", "traversal",
    "tree-distinct", "tree-iid", "tree-specinfer", "sam", "suffix", "suffix-lookup",
)  # fmt: skip
METHODS = [name for name in methods() if name not in (*ALIKE, "layer-skip-demo")]
FEW = ["baseline", "chain", "triforce", "early-exit-shared", "online"]
TEXTS = PROMPTS[1:4]  # a short one, a longer one, a shorter one
LONGEST = max(map(len, TEXTS))


def every_method(pair: Pair, names: Sequence[str] = METHODS, **more: Any) -> list[RunSpec]:
    specs = [spec_of(pair, CPU, name, "eager", **{"temperature": 1.0, "max_new_tokens": 8, **more}) for name in names]
    others = tuple(sorted({one for spec in specs for one in spec.model}))
    return [spec.with_(model=others) for spec in specs]


@contextmanager
def opened(specs: Sequence[RunSpec], tier: str = "eager") -> Iterator[Native]:
    """The pair of specs that are measured together, loaded; in the tier compile without its compiler."""
    known = open_pair(specs)
    native = Native(known.pair, Tier(tier, CPU), "", specs)  # type: ignore[arg-type]
    native.load(LONGEST)
    yield native
    native.unload()


def spoiled(native: Native) -> None:
    """What the pool holds becomes NaN."""
    for buffer in native._pool._buffers.values():
        torch.empty(0, dtype=torch.uint8).set_(buffer.storage).fill_(255)  # type: ignore[call-overload]


def alone(specs: Sequence[RunSpec], tier: str = "eager") -> list[Any]:
    """Every method by itself, with caches that no other has."""
    with opened(specs, tier) as native:
        native.memory = lambda *_: OWN  # type: ignore[method-assign]
        return [said(traces(native, spec, TEXTS)) for spec in specs]


def in_turns(specs: Sequence[RunSpec], tier: str = "eager") -> list[Any]:
    """Every prompt with all methods before the next one; of a batch everything twice, and the second time counts."""
    with opened(specs, tier) as native:
        decodes = [native.prepare(spec, LONGEST) for spec in specs]
        found: list[list[Any]] = [[] for _ in specs]
        batch = specs[0].batch > 1
        turns = [(TEXTS, range(len(TEXTS)))] * 2 if batch else [([p], [n]) for n, p in enumerate(TEXTS)]
        for number, (prompts, seeds) in enumerate(turns):
            for own, decode in zip(found, decodes, strict=True):
                spoiled(native)
                own += said(decode(prompts, list(seeds))) if number or not batch else []
        return found


def stores() -> list[torch.Tensor]:
    """The keys and values of all caches that there are."""
    gc.collect()
    layers = [one for one in gc.get_objects() if type(one) is RowStaticLayer]
    return [store for one in layers for store in (one.keys, one.values) if store is not None]


def held() -> int:
    """Their bytes, each once."""
    return sum({one.data_ptr(): one.untyped_storage().nbytes() for one in stores()}.values())


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tier, "_compiled", lambda tier, function, frozen=True: function)


SETS = quick_or_slow([("few", 3), ("all", 1)], lambda names, rows: (names, rows) == ("few", 3))


def chosen(names: str, fixed: bool = False) -> list[str]:
    some = METHODS if names == "all" else FEW[: 3 if fixed else None]
    return [name for name in some if not (fixed and "shared" in name)]


@pytest.mark.parametrize(("names", "rows"), SETS)
def test_methods_in_turns_decode_what_each_decodes_alone(pair: Pair, names: str, rows: int) -> None:
    specs = every_method(pair, chosen(names), batch=rows)
    assert in_turns(specs) == alone(specs)


@pytest.mark.parametrize(("names", "rows"), SETS)
def test_and_where_caches_stay_in_their_place(pair: Pair, uncompiled: None, names: str, rows: int) -> None:
    specs = every_method(pair, chosen(names, fixed=True), batch=rows)
    assert in_turns(specs, "compile") == alone(specs, "compile")


@pytest.mark.parametrize("tier", ["eager", "compile"])
def test_together_they_take_what_the_largest_takes_alone(pair: Pair, uncompiled: None, tier: str) -> None:
    """And give it back when nothing needs them any more."""
    specs = every_method(pair, ["baseline", "chain", "tree-top"], batch=3)
    sizes = []
    for spec in specs:
        with opened([spec], tier) as native:
            decode = native.prepare(spec, LONGEST)
            decode(TEXTS, range(len(TEXTS)))
            sizes.append(held())
            del decode
    with opened(specs, tier) as native:
        decodes = [native.prepare(spec, LONGEST) for spec in specs]
        for decode in decodes * 2:
            decode(TEXTS, range(len(TEXTS)))
        assert max(sizes) <= held() <= 1.1 * max(sizes) < 0.6 * sum(sizes)
        del decodes, decode
        native.keep([])
        assert held() == 0


def size(pool: Pool) -> int:
    return sum(buffer.storage.nbytes() for buffer in pool._buffers.values())


def test_memory_grows_in_its_place_unless_somebody_knows_the_address() -> None:
    like = torch.zeros((), dtype=torch.float64)
    for fixed in (False, True):
        pool = Pool(fixed)
        one, other = pool.share(), pool.share()
        first = one.zeros(0, "keys", (1, 2, 4, 3), like)
        small = other.beside()
        second = other.zeros(0, "keys", (2, 2, 8, 3), like)
        assert size(pool) == second.nbytes == 4 * first.nbytes
        assert (first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()) is not fixed
        again = one.zeros(0, "keys", (2, 2, 8, 3), like)
        again += 1
        assert second.sum() == second.numel()
        assert small.zeros(0, "keys", (1, 1, 1, 1), like).sum() == 0, "another cache of one method lies elsewhere"
        assert second.sum() == second.numel()


def test_a_fixed_pool_takes_what_the_longest_texts_of_later_methods_need() -> None:
    like = torch.zeros(())
    pool = Pool(fixed=True)
    first, second = pool.share(64, 128), pool.share(128, 128)
    found = [one.zeros(0, "keys", (2, 1, length, 4), like) for one, length in ((first, 64), (second, 128))]
    assert found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr()
    assert size(pool) == found[1].nbytes
    window = first.beside().zeros(0, "keys", (2, 1, 32, 4), like)
    assert window.untyped_storage().nbytes() == window.nbytes, "a cache of a part of a text is as long as that"


@pytest.mark.parametrize("more", [{"dtype": "bfloat16"}, {"dtype": "float16", "draft_dtype": "float32"}])
def test_caches_have_the_dtype_that_was_asked_for(pair: Pair, more: dict[str, str]) -> None:
    (spec,) = every_method(pair, ["chain"], **more)
    with opened([spec]) as native:
        decode = native.prepare(spec, LONGEST)
        decode(TEXTS[:1], [0])
        asked = [getattr(torch, more.get(name, more["dtype"])) for name in ("dtype", "draft_dtype")]
        assert {one.dtype for one in stores()} == set(asked)
        del decode


def test_arms_that_later_groups_have_as_well_are_there_in_between() -> None:
    cells = [RunSpec(dataset=data, batch=rows) for data, rows in (("code", 1), ("code", 8), ("articles", 1))]
    found = kept_arms([Held([spec], 10) for spec in cells])
    assert [sorted((spec.method, spec.batch) for spec in some) for some in found] == [
        [("baseline", 1), ("chain", 1)],
        [("baseline", 1), ("baseline", 8), ("chain", 1), ("chain", 8)],
        [("baseline", 1), ("chain", 1)],
    ]
