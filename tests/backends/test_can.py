"""The table of what engines besides ours can do."""

import pytest

from specbench.backends.base import ANYWHERE, CAN, Can, refuse_settings
from specbench.backends.choose import BACKENDS
from specbench.decoding.methods import PARTS
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


def test_a_new_setting_is_refused_until_an_engine_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `--eta` would be, if no row knew it."""
    monkeypatch.setitem(CAN, "new", Can(settings={}, why={}))
    with pytest.raises(UsageError, match="--backend new: --eta: it has no such setting: leave it out"):
        refuse_settings("new", RunSpec(eta=0.1))
    refuse_settings("new", RunSpec(temperature=1.0, limit=3))


@pytest.mark.parametrize("engine", CAN)
def test_the_parts_of_a_row_are_parts_of_method_files(engine: str) -> None:
    assert {*CAN[engine].drafters} <= {*PARTS}
