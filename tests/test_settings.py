"""Every list of settings follows from the declarations in spec.py, none lacks a setting, and all are as they were."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import pytest
from pydantic import Field

from specbench.judge import matching, verdict
from specbench.measure import grid
from specbench.settings import MEANING, ORDER, Group, Part, Setting, declared, group, part
from specbench.show import text as shown
from specbench.spec import RunSpec

LAW = ("temperature", "top_k", "top_p", "min_p", "eta")
LOADED = ("quantize", "attn_implementation", "vocabulary", "device_map", "tensor_parallel")
LENGTH = ("max_new_tokens", "ignore_eos")


GENERATE = str(Path(__file__).parents[1] / "docs" / "generate.py")
settings_page = runpy.run_path(GENERATE)["settings_of"]


class Wider(RunSpec):
    """A spec with two settings more than there are: one with everything left at its usual, one beside the law."""

    fresh: Annotated[int, Field(ge=1), Setting("Method", "method", "A new setting.")] = 3
    typical: Annotated[
        float | None, Field(gt=0, lt=1), Setting("Sampling", "sampling", "Mass of | typical tokens.")
    ] = None


# --- as they were -----------------------------------------------------------------------------------------------------


def test_the_lists_of_settings_are_those_that_were_written_by_hand() -> None:
    pair, how = ("target", "draft", "model"), ("method", "choices", "k", "schedule", "confidence", "acceptance")
    chat = ("chat_template_resolved", "system", "thinking", "chat_template_kwargs")
    served, words = ("endpoint", "request_field"), ("server_args", "spec_config", "spec_args")
    revisions, draws = ("target_revision", "draft_revision"), ("seed", "warmup", "repeat")
    assert (
        *pair, *how, "acceptance_source", "dataset", *LAW, *LENGTH, "dtype", *LOADED, "tier", "backend",
        "engine_option", "url",
        "baseline_url", *words, *served, "batch", "arrivals", "burstiness", "column", "template",
        "context", "chat_template", "system", "thinking", "chat_template_kwargs", "limit",
    ) == matching.COMPARED  # fmt: skip
    assert (
        *revisions,
        "aux_layers",
        "draft_dtype",
        "draft_quantize",
        "draft_vocabulary",
        "draft_device",
        "device",
        "trust_remote_code",
        "slo",
        *draws,
    ) == matching.FURTHER
    assert (
        "schema_version", *pair, "acceptance", "dataset", "context", *chat, *LAW, *LENGTH, "tier",
        "engine", "engine_option", "url", "baseline_url", "server_args", *served, "batch", "arrivals", "burstiness",
        "aux_layers", "dtype_resolved", "draft_dtype_resolved", "quantize", "draft_quantize",
        "draft_vocabulary_resolved", "attn_implementation", "vocabulary_resolved", "device_map", "tensor_parallel",
        "draft_device", "device_name", "fingerprint",
        "prompts_sha256",
    ) == verdict.QUESTION  # fmt: skip
    assert (
        *pair, *how, "aux_layers", "dtype_resolved", "draft_dtype_resolved", "quantize", "draft_quantize",
        "draft_vocabulary_resolved", "attn_implementation", "vocabulary_resolved", "device_map", "tensor_parallel",
        "draft_device", *LAW, *LENGTH, "context", *chat, "limit", "until_ci",
        "seed", "tier", "engine", "engine_option", "url", "baseline_url", *words, *served,
        "batch", "arrivals", "burstiness", "slo", "device",
    ) == shown.SETTINGS  # fmt: skip
    assert (
        "target", "draft", *revisions, "model", "aux_layers", "dtype", "draft_dtype", "quantize", "draft_quantize",
        "draft_vocabulary", "attn_implementation", "vocabulary", "device_map", "tensor_parallel", "draft_device",
        "device",
        "trust_remote_code", "tier", "backend", "engine_option", "url", "baseline_url", "server_args",
    ) == grid.PAIR  # fmt: skip


def test_cells_of_one_sweep_differ_in_their_lookahead_alone() -> None:
    assert shown.LOOKAHEAD == ("k", "schedule", "confidence")
    assert {*shown.IDENTITY, *shown.LOOKAHEAD} == set(RunSpec.model_fields)
    assert not {*shown.IDENTITY} & {*shown.LOOKAHEAD}


def test_runs_are_compared_by_every_setting_but_the_one_that_says_when_to_stop() -> None:
    assert {*matching.COMPARED, *matching.FURTHER} == set(RunSpec.model_fields) - {"until_ci"}
    assert not {*matching.COMPARED} & {*matching.FURTHER}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "b845ff5cc366"),
        ({"model": "a=b,c=target[:50%]", "top_p": 0.5}, "9117b54a3e14"),
        ({"acceptance": (0.5, 0.4), "schedule": "auto"}, "6fd467156b41"),
    ],
)
def test_a_cell_keeps_its_key(changes: dict[str, object], key: str) -> None:
    assert RunSpec.model_validate(changes).key == key


# --- none is forgotten ------------------------------------------------------------------------------------------------


def test_every_field_declares_its_setting() -> None:
    assert list(declared(RunSpec)) == list(RunSpec.model_fields)
    assert all(one.setting.help.endswith(".") for one in declared(RunSpec).values())
    for one in declared(RunSpec).values():
        assert set(one.setting.of) <= set(MEANING), one.name
        assert not {"compared", "further"} <= set(one.setting.of), one.name
    assert set(MEANING) == set(get_args(Part))


def test_a_field_without_a_setting_is_refused() -> None:
    class Bare(RunSpec):
        forgotten: int = 1

    with pytest.raises(TypeError, match=r"Bare\.forgotten needs one Setting"):
        declared(Bare)


def test_the_help_names_every_word_that_a_setting_takes() -> None:
    words = [one for one in declared(RunSpec).values() if get_origin(one.type) is Literal]
    assert len(words) >= 2
    for one in words:
        assert all(value in one.setting.help for value in get_args(one.type)), one.name


def test_the_page_of_settings_has_them_all() -> None:
    rows = [
        line.split(" | ")[0].removeprefix("| ")
        for line in settings_page(RunSpec).splitlines()
        if line.startswith("| `")
    ]
    own = [one for one in declared(RunSpec).values() if not one.setting.within]
    within = [f"`{one.name}`, in" for one in declared(RunSpec).values() if one.setting.within]
    assert sorted(row for row in rows if ", in" not in row) == sorted(
        ", ".join(f"`{f}`" for f in one.flags) for one in own
    )
    assert sorted(row[: row.index(" `--")] for row in rows if ", in" in row) == sorted(within)


# --- a new one --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["identity", "question", "compared", "heading"])
def test_a_new_setting_is_part_of_everything_unless_it_says_otherwise(name: Part) -> None:
    before, now = ([one.name for one in part(name, model)] for model in (RunSpec, Wider))
    assert set(now) - set(before) == {"fresh", "typical"}
    assert [one for one in now if one in before] == before


def test_a_new_setting_stands_beside_those_of_its_group() -> None:
    compared = [one.name for one in part("compared", Wider)]
    assert compared[compared.index("typical") - 1] == LAW[-1]
    assert [one.name for one in group("sampling", Wider)] == [*LAW, "typical"]


def test_every_group_has_its_place_in_every_list_that_people_read() -> None:
    for name, order in ORDER.items():
        assert {one.setting.group for one in part(name, RunSpec)} <= set(order) <= set(get_args(Group)), name


def test_the_page_explains_a_new_setting() -> None:
    rows = settings_page(Wider).splitlines()
    assert "| `--fresh` | whole number from 1 | 3 | A new setting. | identity, question, compared, heading |" in rows
    assert "| `--typical` | number above 0 below 1 | | Mass of \\| typical tokens. | identity, question, compared, heading |" in rows  # fmt: skip # noqa: E501


def test_a_late_setting_leaves_the_keys_of_its_default_alone() -> None:
    class Later(RunSpec):
        fresh: Annotated[int, Setting("Method", "method", "A new setting.", late=True)] = 3

    assert Later().key == RunSpec().key
    assert Later(fresh=4).key != RunSpec().key
    assert Wider().key != RunSpec().key


ADDED = """
import json, runpy, sys
from typing import Annotated
from pydantic import Field
import specbench.spec
from specbench.settings import Setting

class RunSpec(specbench.spec.RunSpec):
    fresh: Annotated[int, Field(ge=1, le=9), Setting("Method", "method", "A setting added on the fly.")] = 3

RunSpec.__module__ = "specbench.spec"
specbench.spec.RunSpec = RunSpec

from typer.testing import CliRunner
from specbench.cli.app import app
from specbench.cli.options import settings_of
from specbench.judge import matching, verdict
from specbench.measure import grid
from specbench.results.cells import Cell
from specbench.show import text as shown

cells = grid.cells({"fresh": [4, 5], "k": [1, 2]})
rows = [Cell(spec, {}).row() for spec in cells]
print(json.dumps({
    "help": CliRunner().invoke(app, ["run", "--help-all"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output,
    "code": CliRunner().invoke(app, ["run", "--fresh", "10"]).exit_code,
    "chosen": settings_of({"fresh": 6}),
    "fresh": [row["fresh"] for row in rows],
    "series": [[row["k"] for row in some] for some in shown.series(rows)],
    "identity": shown.IDENTITY, "compared": matching.COMPARED, "question": verdict.QUESTION,
    "heading": shown.SETTINGS, "page": runpy.run_path(sys.argv[1])["settings_of"](specbench.spec.RunSpec),
}))
"""


def test_a_setting_added_on_the_fly_is_found_wherever_settings_are() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDED, GENERATE], capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    line = next(line for line in found["help"].splitlines() if "--fresh" in line)
    assert "A setting added on the fly. Default: 3." in line
    assert "[1<=x<=9]" in line
    assert found["code"] == 2
    assert found["chosen"] == {"fresh": 6}
    assert sorted(found["fresh"]) == [4] * 2 + [5] * 2, "two lookaheads for each"
    assert found["series"] == [[1, 2]] * 2, "cells that differ in it are no lines of one sweep"
    for name in ("identity", "compared", "question", "heading"):
        assert "fresh" in found[name], name
    assert "| `--fresh` | whole number from 1 to 9 | 3 |" in found["page"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"schedule": "confidence:0.25"}, {"schedule": "confidence", "confidence": 0.25}),
        ({"template": "problem"}, {"column": "problem"}),
        ({"template": "Q: {problem}"}, {"template": "Q: {problem}"}),
        ({"template": "Q", "column": "problem"}, {"template": "Q", "column": "problem"}),
    ],
)
def test_an_option_holds_the_settings_that_have_none(given: dict[str, str], meant: dict[str, object]) -> None:
    assert RunSpec(**given) == RunSpec.model_construct(**{**RunSpec().model_dump(), **meant})  # type: ignore[arg-type]
