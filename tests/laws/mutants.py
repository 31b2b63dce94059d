"""Prints every mutant with the test that catches it: `python -m tests.laws.mutants`.

A mutant is the code, broken in one place. Its own test, marked `mutant`, breaks it and asserts that the check of the
named test sees it; this runs them all, the slow ones too.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]

# (function, a part of its source, what takes its place, a check that must fail then: a test, or a `partial` of one)
Mutant = tuple[Callable[..., Any], str, str, Callable[[], None]]


def mutants(table: Mapping[str, Mutant] | Mapping[str, "Patch"]) -> pytest.MarkDecorator:
    """Runs a test with each `mutant` of a table by name, whose check is `mutant[-1]`."""
    tests = {name: check.func if isinstance(check, partial) else check for name, (*_, check) in table.items()}
    marks = {name: pytest.mark.mutant(test=test) for name, test in tests.items()}
    return pytest.mark.parametrize("mutant", [pytest.param(table[name], marks=marks[name], id=name) for name in table])


# (owner, name of its attribute, what takes its place, a check that must fail then: a test, or a `partial` of one)
Patch = tuple[Any, str, Any, Callable[..., None]]


def catches_patch(owner: Any, name: str, wrong: Any, check: Callable[[], None]) -> None:
    """Assert that a check fails where an attribute is another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, wrong)
        with pytest.raises(AssertionError):
            check()


@contextmanager
def broken(function: Callable[..., Any], right: str, wrong: str) -> Iterator[None]:
    """Let a function have `wrong` in its source where `right` was, for all who imported it.

    Raises AssertionError where its source has `right` not exactly once: then the mutant has to be written anew.
    """
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) == 1, f"{function.__qualname__} has {source.count(right)} times {right!r}"
    parts = compile(source.replace(right, wrong), f"a mutant of {function.__qualname__}", "exec").co_consts
    (made,) = (part for part in parts if isinstance(part, CodeType) and part.co_name == function.__name__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "__code__", made)
        yield


def catches(function: Callable[..., Any], right: str, wrong: str, check: Callable[[], None]) -> None:
    """Assert that a check fails on a mutant."""
    with broken(function, right, wrong), pytest.raises(AssertionError):
        check()


class Catalogue:
    """Prints a line for every mutant once its test has ended."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report: pytest.TestReport = yield
        mark = item.get_closest_marker("mutant")
        if mark and (report.when == "call" or not report.passed):
            ended = "caught by" if report.passed else f"{report.outcome.upper()}, should be caught by"
            print(f"{mutant(item)}: {ended} {where(mark.kwargs['test'])}", flush=True)
        return report


def mutant(item: pytest.Item) -> str:
    """What was broken: the parameters of a test name it, or else the test does."""
    return item.callspec.id if hasattr(item, "callspec") else item.name.removeprefix("test_").replace("_", " ")


def where(test: Callable[..., object]) -> str:
    """The file and the name of a test."""
    return f"{test.__module__.replace('.', '/')}.py::{test.__name__}"


if __name__ == "__main__":
    quietly = ["-o", "addopts=--strict-markers", "-p", "no:terminal", "-p", "no:xdist", "-s"]
    sys.exit(pytest.main([*quietly, "-m", "mutant", str(TESTS)], plugins=[Catalogue()]))
