"""What the machine gives to this process: memory that is free, its peak, and threads."""

import resource
from pathlib import Path

import pytest
import torch

from specbench.models.execution import machine as threads
from specbench.models.execution.machine import (
    cores,
    fit_threads,
    free_memory,
    give_back,
    kilobytes,
    resident,
    set_back,
    watched,
)
from specbench.results.machine import Peak, Peaks, peaks_of
from tests.support.toys import CPU

KB, GB = 1024, 1 << 30


def system(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {32 * GB // KB} kB\nMemAvailable: {20 * GB // KB} kB\n")
    return root


def group(root: Path, path: str, **files: object) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def test_what_the_machine_has_left_is_free_where_it_says_so(tmp_path: Path) -> None:
    assert free_memory(CPU, system(tmp_path)) == 20 * GB
    assert free_memory(CPU, tmp_path / "nowhere") is None


def test_the_tightest_group_above_a_process_decides_and_files_it_can_drop_do_not_count(tmp_path: Path) -> None:
    root = system(tmp_path, proc__self__cgroup="0::/box/job\n")
    group(root, "box", memory__max=8 * GB, memory__current=5 * GB, memory__stat=f"anon 1\ninactive_file {GB}")
    group(root, "box/job", memory__max="max", memory__current=3 * GB)
    assert free_memory(CPU, root) == 4 * GB
    root = system(tmp_path, proc__self__cgroup="0::/not/there\n")
    group(root, "", memory__max=3 * GB, memory__current=GB)
    assert free_memory(CPU, root) == 2 * GB


@pytest.mark.parametrize(("limit", "free"), [(6 * GB, 5 * GB), (9223372036854771712, 20 * GB)])
def test_groups_of_version_1(tmp_path: Path, limit: int, free: int) -> None:
    root = system(tmp_path, proc__self__cgroup="5:cpu:/a\n4:memory:/a\n0::/\n")
    group(root, "memory/a", memory__limit_in_bytes=limit, memory__usage_in_bytes=GB)
    assert free_memory(CPU, root) == free


def test_a_limit_on_addresses_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = system(tmp_path, proc__self__status=f"VmSize:\t{2 * GB // KB} kB\nVmRSS:\t{GB // KB} kB\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5 * GB, -1))
    assert free_memory(CPU, root) == 3 * GB
    assert resident(root) == GB


MEGABYTES = 1 << 20
told = pytest.mark.skipif(not set_back(Path("/")), reason="the system does not set the highest memory back")


@told
def test_what_is_taken_and_given_back_meanwhile_counts_and_what_was_before_does_not() -> None:
    earlier = torch.ones(96 * MEGABYTES, dtype=torch.uint8)
    del earlier
    give_back()
    with watched(CPU) as idle:
        device, before = idle()
    with watched(CPU) as peak:
        taken = torch.ones(64 * MEGABYTES, dtype=torch.uint8)
        del taken
        _, most = peak()
    assert device is None
    assert before is not None
    assert most is not None
    assert before + 48 * MEGABYTES < most < before + 90 * MEGABYTES


def test_where_the_system_does_not_set_it_back_it_is_unknown(tmp_path: Path) -> None:
    with watched(CPU, tmp_path) as peak:
        assert peak() == (None, None)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "status").write_text("VmHWM:\t  12 kB\n")
    assert kilobytes(tmp_path / "proc/self/status", "VmHWM") == 12 * 1024
    with watched(CPU, tmp_path) as peak:
        assert peak() == (None, 12 * 1024)
    assert (tmp_path / "proc" / "self" / "clear_refs").read_text() == "5"


def test_the_higher_of_two_is_the_known_one() -> None:
    assert Peak(None, 3).higher(Peak(2, 1)) == Peak(2, 3)
    found = Peaks(Peak(None, 1)).higher(Peaks(Peak(None, 2), Peak(5, None)))
    assert list(found.row().values()) == [None, 2, 5, None]
    assert peaks_of(found.line()) == found
    assert peaks_of({}) == Peaks()


@pytest.mark.parametrize("line", [{"method": ["5", 1]}, {"method": [-1, 1]}, {"other": [1, 1]}, {"method": [1, 1, 1]}])
def test_a_line_without_bytes_is_refused(line: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        peaks_of(line)  # type: ignore[arg-type]


def system_of(root: Path, siblings: dict[int, str], **groups: str) -> Path:
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
    assert cores(set(siblings), system_of(tmp_path, siblings, **groups)) == expected


def test_only_the_processors_that_are_allowed_count(tmp_path: Path) -> None:
    assert cores({0, 4}, system_of(tmp_path, FOUR)) == 1
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
