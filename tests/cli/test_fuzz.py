"""Random bad input through every command, each case in its own process; `tests/benchmarks/fuzz.py` has thousands."""

import os
from collections.abc import Iterator

import pytest

from tests.support.fuzz.processes import DOCUMENTED, MOST, Ended, Limits
from tests.support.fuzz.session import KINDS, Session

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
CASES = {  # of each kind in every run of the tests
    "options": 10, "yaml": 8, "rows": 6, "checkpoints": 4, "runs": 6,
    "server": 8, "hub": 2, "links": 8, "caches": 4, "forged": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session.begun(tmp_path_factory.mktemp("fuzz"), 0, Limits(seconds=300)) as begun:
        yield begun


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_ends_in_a_line_and_a_documented_exit_code(session: Session, kind: str) -> None:
    found = {number: session.ended(kind, number) for number in range(CASES[kind])}
    assert {number: one.wrong for number, one in found.items() if one.wrong} == {}
    assert {one.code for one in found.values()} <= DOCUMENTED
    assert any(one.code for one in found.values()), "all of the input was good"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_bad_input(session: Session, kind: str) -> None:
    assert {number: one.wrong for number in range(100, 105) if (one := session.ended(kind, number)).wrong} == {}


def ended(**changes: object) -> Ended:
    return Ended(**{"code": 2, "out": "", "err": "specbench: no\n", "seconds": 1, "made": (), "leaked": (), **changes})  # type: ignore[arg-type]


WRONG = {
    "hang": {"code": -9},
    "killed": {"code": -11},
    "traceback": {"err": "Traceback (most recent call last):\nspecbench: no"},
    "exit code": {"code": 1},
    "no line": {"err": "note: a\n"},
    "more than one line": {"err": "specbench: a\nspecbench: b"},
    "not printable": {"err": "specbench: \x1b[31m"},
    "file outside": {"made": ("home/x",)},
    "secret": {"leaked": ("out",)},
    "memory": {"memory": MOST + 1},
    "unfinished file": {"unfinished": ("cwd/.a.tmp",)},
    "process left": {"outlived": True},
    "accepted": {"accepted": True},
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_seen(kind: str) -> None:
    """The control of the tests above."""
    assert ended().wrong == []
    assert ended(**WRONG[kind]).wrong == [kind]
