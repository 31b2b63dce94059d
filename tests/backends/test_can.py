"""The table of what engines besides ours can do."""

from typing import Any

import pytest

from specbench.backends.base import ANYWHERE, CAN, Can, refuse_settings
from specbench.backends.choose import BACKENDS
from specbench.decoding.parts import PARTS
from specbench.errors import UsageError
from specbench.settings import declared
from specbench.spec import RunSpec


def test_every_engine_besides_ours_has_a_row() -> None:
    assert {*CAN, "native"} == {*BACKENDS}


@pytest.mark.parametrize("engine", CAN)
def test_an_engine_has_a_setting_or_says_why_not(engine: str) -> None:
    settings, can = declared(RunSpec), CAN[engine]
    asked = {name for name, one in settings.items() if not {name, one.setting.group} & {*ANYWHERE}}
    assert {*can.settings, *can.why} - settings.keys() == set()
    assert asked - {*can.settings, *can.why} == set()


@pytest.mark.parametrize(
    ("engine", "changes", "line"),
    [
        ("transformers", {"batch": 2}, "--backend transformers: --batch: its assisted generation decodes one prompt"),
        ("transformers", {"tier": "graph"}, "--backend transformers: --tier: it captures no graphs"),
        ("vllm", {"min_p": 0.1}, "--backend vllm: --min-p: it heeds no such bound"),
        ("vllm", {"draft_quantize": "int8"}, "--backend vllm: --draft-quantize: it reads the checkpoints as they are"),
        ("llama.cpp", {"tier": "compile"}, "--backend llama.cpp: --tier: it has one way"),
        ("openai", {"chat_template": "always"}, "--backend openai: --chat-template is for the server to decide"),
    ],
)
def test_what_an_engine_lacks_is_refused(engine: str, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        refuse_settings(engine, RunSpec(backend=engine, **changes))


def test_a_new_setting_is_refused_until_an_engine_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `--eta` would be, if no row knew it."""
    monkeypatch.setitem(CAN, "new", Can(settings={}, why={}))
    with pytest.raises(UsageError, match="--backend new: --eta: it has no such setting: leave it out"):
        refuse_settings("new", RunSpec(eta=0.1))
    refuse_settings("new", RunSpec(temperature=1.0, limit=3))


@pytest.mark.parametrize("engine", CAN)
def test_the_parts_of_a_row_are_parts_of_method_files(engine: str) -> None:
    assert {*CAN[engine].drafters} <= {*PARTS}
