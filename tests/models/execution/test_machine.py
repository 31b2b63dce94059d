"""What the machine gives to this process, from files of systems that are not this one: memory, threads, and peaks."""

import resource
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from specbench.models.execution import machine
from specbench.models.execution.machine import cores, fit_threads, free_memory, give_back, kilobytes, resident, watched
from specbench.results.machine import Peak, Peaks, peaks_of
from tests.support.toys import CPU

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
GROUPS = "sys/fs/cgroup"
MEMORY = {"proc/meminfo": f"MemTotal: {32 * GB // KB} kB\nMemAvailable: {20 * GB // KB} kB"}


def system(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


# --- free memory ------------------------------------------------------------------------------------------------------


def limited(group: str, limit: object, used: int) -> dict[str, object]:
    return {f"{GROUPS}/{group}/memory.max": limit, f"{GROUPS}/{group}/memory.current": used}


def version_1(limit: int) -> dict[str, object]:
    files = {"limit_in_bytes": limit, "usage_in_bytes": GB}
    about = {f"{GROUPS}/memory/a/memory.{name}": value for name, value in files.items()}
    return {"proc/self/cgroup": "5:cpu:/a\n4:memory:/a\n0::/", **about}


FREE: dict[str, tuple[Mapping[str, object], int]] = {
    "what the machine has left": ({}, 20 * GB),
    "the tightest group above, without the files that it can drop": (
        {"proc/self/cgroup": "0::/box/job", **limited("box", 8 * GB, 5 * GB), **limited("box/job", "max", 3 * GB),
         f"{GROUPS}/box/memory.stat": f"anon 1\ninactive_file {GB}"}, 4 * GB),
    "a container, which sees its own group as the root": (
        {"proc/self/cgroup": "0::/not/there", **limited(".", 3 * GB, GB)}, 2 * GB),
    "groups of version 1": (version_1(6 * GB), 5 * GB),
    "groups of version 1 without a limit": (version_1(9223372036854771712), 20 * GB),
}  # fmt: skip


@pytest.mark.parametrize(("files", "free"), FREE.values(), ids=FREE)
def test_the_tightest_limit_says_what_is_free(tmp_path: Path, files: Mapping[str, object], free: int) -> None:
    assert free_memory(CPU, system(tmp_path, {**MEMORY, **files})) == free
    assert free_memory(CPU, tmp_path / "nowhere") is None


def test_a_limit_on_addresses_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = f"VmSize:\t{2 * GB // KB} kB\nVmRSS:\t{GB // KB} kB"
    root = system(tmp_path, {**MEMORY, "proc/self/status": status})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5 * GB, -1))
    assert free_memory(CPU, root) == 3 * GB
    assert resident(root) == GB


# --- peak memory ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not machine.set_back(Path("/")), reason="the system does not set the highest memory back")
def test_what_is_taken_and_given_back_meanwhile_counts_and_what_was_before_does_not() -> None:
    earlier = torch.ones(96 * MB, dtype=torch.uint8)
    del earlier
    give_back()
    with watched(CPU) as idle:
        device, before = idle()
    with watched(CPU) as peak:
        taken = torch.ones(64 * MB, dtype=torch.uint8)
        del taken
        _, most = peak()
    assert device is None
    assert before is not None
    assert most is not None
    assert before + 48 * MB < most < before + 90 * MB


def test_where_the_system_does_not_set_it_back_it_is_unknown(tmp_path: Path) -> None:
    with watched(CPU, tmp_path) as peak:
        assert peak() == (None, None)
    system(tmp_path, {"proc/self/status": "VmHWM:\t  12 kB"})
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


# --- threads ----------------------------------------------------------------------------------------------------------

FOUR = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}  # two cores of two threads each
EIGHT = {n: str(n) for n in range(8)}


@pytest.mark.parametrize(
    ("siblings", "groups", "expected"),
    [
        ({0: "0", 1: "1"}, {}, 2),
        (FOUR, {}, 2),
        (FOUR, {"cpu.max": "max 100000"}, 2),
        (FOUR, {"cpu.max": "100000 100000"}, 1),
        (FOUR, {"cpu.max": "150000 100000"}, 2),
        (FOUR, {"cpu.max": "20000 100000"}, 1),
        (EIGHT, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        (EIGHT, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({0: "0", 1: "1"}, {"cpu.max": "rubbish"}, 2),
    ],
)
def test_cores_are_counted_and_time_is_not_exceeded(
    tmp_path: Path, siblings: dict[int, str], groups: dict[str, str], expected: int
) -> None:
    shared = {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": text for n, text in siblings.items()}
    root = system(tmp_path, {**shared, **{f"{GROUPS}/{name}": text for name, text in groups.items()}})
    assert cores(set(siblings), root) == expected
    if siblings is FOUR:
        assert cores({0, 4}, root) == 1, "only the processors that are allowed count"
    assert cores({0, 1, 2}, tmp_path / "nowhere") == 3, "every processor is a core where the system does not tell"


@pytest.mark.parametrize(("said", "counted", "found"), [("", 1, 1), ("3", 1, 3), ("", 64, 3)])
def test_the_user_has_the_last_word_and_threads_never_become_more(
    said: str, counted: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "cores", lambda allowed: counted)
    try:
        torch.set_num_threads(3)
        fit_threads()
        assert torch.get_num_threads() == found
    finally:
        torch.set_num_threads(before)
