"""The native backend: what opening a pair does, and what it says about the pair."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.backends import choose, native
from specbench.backends.base import networks_of
from specbench.backends.native import Native, open_pair
from specbench.backends.tiers import Tier
from specbench.decoding.rounds import Stepwise
from specbench.models.checkpoints import description
from specbench.models.execution import machine
from specbench.spec import RunSpec
from tests.support.frontdoor import SHORT, Command
from tests.support.tiny import network
from tests.support.tinypair import CONTEXT, Pair, prompts, save_tokenizer


def not_to_be_called(*_: Any) -> None:
    raise AssertionError("a constructor does nothing but keep what it is given")


def test_only_opening_a_pair_reads_files_and_chooses_threads(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    fitted: list[bool] = []
    monkeypatch.setattr(machine, "fit_threads", lambda: fitted.append(True))
    opened = open_pair([RunSpec(target=str(pair.target), draft=str(pair.draft))])
    assert fitted == [True]
    for module, name in ((machine, "fit_threads"), (description, "load_config"), (description, "load_tokenizer")):
        monkeypatch.setattr(module, name, not_to_be_called)
    again = Native(opened.pair, opened.tier, opened.execution)
    assert (again.name, again.context, again.warnings) == ("native", CONTEXT, ())


def test_the_native_backend_is_the_one_that_is_chosen_and_describes_its_pair_in_columns(pair: Pair) -> None:
    opened = choose.backend_for([RunSpec(target=str(pair.target), draft=str(pair.draft), dtype="float64")])
    assert isinstance(opened, native.Native)
    assert networks_of(opened, "a test") is opened
    assert opened.depth == 2
    assert opened.describe() == {
        "tier_resolved": "eager", "tier_refused": "", "scale_model": "", "draft_vocabulary_resolved": "",
        "vocabulary_resolved": "", "vocabulary_shared": "",
        "target_source": str(pair.target), "target_commit": None, "target_weights": None,
        "target_rollback": None, "dtype_resolved": "float64",
        "draft_source": str(pair.draft), "draft_commit": None, "draft_weights": None,
        "draft_rollback": None, "draft_dtype_resolved": "float64",
    }  # fmt: skip
    assert opened.execution.startswith("tier eager: ")


def test_what_is_still_to_come_keeps_its_arms_whatever_its_prompts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_pair([RunSpec(target=str(pair.target), draft=str(pair.draft), tier="eager")])
    opened.load()
    made: list[str] = []
    rounds = Stepwise(opened.method(RunSpec(method="chain", k=2)), 64)  # of a length, as what is compiled has one
    monkeypatch.setattr(Tier, "rounds", lambda tier, method, *_: made.append("") or rounds)
    one, other = (RunSpec(method="chain", k=k, max_new_tokens=8) for k in (2, 3))
    for spec in (one, other, one.with_(dataset="articles", seed=5)):
        opened.prepare(spec, 16)
    assert len(made) == 2
    opened.keep([one.with_(dataset="xsum", chat_template="none")])
    opened.prepare(one, 16)
    assert len(made) == 2
    opened.prepare(other, 16)
    assert len(made) == 3


def test_a_run_counts_the_experts_of_its_target(command: Command, tmp_path: Path) -> None:
    for place, family in ((tmp_path / "target", "mixtral"), (tmp_path / "draft", "llama")):
        network(family, 64, dtype=torch.float32).save_pretrained(place)
        save_tokenizer(place)
    pair = Pair(tmp_path / "target", tmp_path / "draft")
    found = command(
        "run", *pair.options, "--dataset", prompts(tmp_path / "words.jsonl", 4, 6), *SHORT, "--explain"
    ).ok()
    (row,) = found.table()
    assert (row["lossless"], row["experts"], row["experts_per_step"]) == ("identical", "4", "2.0")
    assert 2 < float(row["experts_per_verify"]) <= 4
    assert 1 < float(row["v_by_experts"]) <= 2
    assert "of 4 experts of a layer" in " ".join(found.out.split())
