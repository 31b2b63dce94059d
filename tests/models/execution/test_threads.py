"""One thread per physical core, no more than a container has time for, and as many as the user says."""

from pathlib import Path

import pytest
import torch

from specbench.models.execution import machine as threads
from specbench.models.execution.machine import cores, fit_threads


def machine(root: Path, siblings: dict[int, str], **groups: str) -> Path:
    for number, text in siblings.items():
        place = root / f"sys/devices/system/cpu/cpu{number}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text + "\n")
    for name, text in groups.items():
        place = root / "sys/fs/cgroup" / name.replace("__", ".").replace("_in_", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return root


FOUR = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}  # two cores of two threads each
EIGHT = {n: str(n) for n in range(8)}


@pytest.mark.parametrize(
    ("siblings", "groups", "expected"),
    [
        ({0: "0", 1: "1"}, {}, 2),
        (FOUR, {}, 2),
        (FOUR, {"cpu__max": "max 100000"}, 2),
        (FOUR, {"cpu__max": "100000 100000"}, 1),
        (FOUR, {"cpu__max": "150000 100000"}, 2),
        (FOUR, {"cpu__max": "20000 100000"}, 1),
        (EIGHT, {"cpu_in_cpu__cfs_quota_us": "300000", "cpu_in_cpu__cfs_period_us": "100000"}, 3),
        (EIGHT, {"cpu_in_cpu__cfs_quota_us": "-1", "cpu_in_cpu__cfs_period_us": "100000"}, 8),
        ({0: "0", 1: "1"}, {"cpu__max": "rubbish"}, 2),
    ],
)  # fmt: skip
def test_cores_are_counted_and_time_is_not_exceeded(
    tmp_path: Path, siblings: dict[int, str], groups: dict[str, str], expected: int
) -> None:
    assert cores(set(siblings), machine(tmp_path, siblings, **groups)) == expected


def test_only_the_processors_that_are_allowed_count(tmp_path: Path) -> None:
    assert cores({0, 4}, machine(tmp_path, FOUR)) == 1


def test_where_the_system_does_not_tell_every_processor_is_a_core(tmp_path: Path) -> None:
    assert cores({0, 1, 2}, tmp_path) == 3


@pytest.mark.parametrize(("said", "found"), [("", 1), ("3", 3)])
def test_the_user_has_the_last_word(said: str, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda allowed: 1)
    try:
        torch.set_num_threads(3)
        fit_threads()
        assert torch.get_num_threads() == found
    finally:
        torch.set_num_threads(before)


def test_fewer_threads_than_cores_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda allowed: 64)
    before = torch.get_num_threads()
    fit_threads()
    assert torch.get_num_threads() == before
