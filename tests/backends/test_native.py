"""The native backend: what opening a pair does, and what it says about the pair."""

from typing import Any

import pytest

from specbench.backends import choose, native
from specbench.backends.base import networks_of
from specbench.backends.native import Native, open_pair
from specbench.models.checkpoints import description
from specbench.models.execution import threads
from specbench.spec import RunSpec
from tests.support.tinypair import CONTEXT, Pair


def not_to_be_called(*_: Any) -> None:
    raise AssertionError("a constructor does nothing but keep what it is given")


def test_only_opening_a_pair_reads_files_and_chooses_threads(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    fitted: list[bool] = []
    monkeypatch.setattr(threads, "fit_threads", lambda: fitted.append(True))
    opened = open_pair([RunSpec(target=str(pair.target), draft=str(pair.draft))])
    assert fitted == [True]
    for module, name in ((threads, "fit_threads"), (description, "load_config"), (description, "load_tokenizer")):
        monkeypatch.setattr(module, name, not_to_be_called)
    again = Native(opened.pair, opened.tier, opened.execution)
    assert (again.name, again.context, again.warnings) == ("native", CONTEXT, ())


def test_a_pair_describes_itself_in_columns(pair: Pair) -> None:
    opened = open_pair([RunSpec(target=str(pair.target), draft=str(pair.draft), dtype="float64")])
    assert opened.describe() == {
        "tier_resolved": "eager", "scale_model": "",
        "target_source": str(pair.target), "target_commit": None, "target_weights": None, "dtype_resolved": "float64",
        "draft_source": str(pair.draft), "draft_commit": None, "draft_weights": None, "draft_dtype_resolved": "float64",
    }  # fmt: skip
    assert opened.execution.startswith("tier eager: ")


def test_the_native_backend_is_the_one_that_is_chosen_and_gives_its_networks(pair: Pair) -> None:
    backend = choose.backend_for([RunSpec(target=str(pair.target), draft=str(pair.draft))])
    assert isinstance(backend, native.Native)
    assert networks_of(backend, "a test") is backend
    assert networks_of(backend, "a test").depth == 2
