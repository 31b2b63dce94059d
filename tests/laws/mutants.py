"""Prints every mutant with the test that catches it: `python -m tests.laws.mutants`.

A mutant is the code, broken in one place. Its own test, marked `mutant`, breaks it and asserts that the check of the
named test sees it; this runs them all, the slow ones too.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


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
