"""Free memory, from the files of systems that are not this one."""

import resource
from pathlib import Path

import pytest

from specbench.models.execution.machine import free_memory, resident
from tests.support.checkpoints import CPU

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


def test_what_the_machine_has_left_is_free(tmp_path: Path) -> None:
    assert free_memory(CPU, system(tmp_path)) == 20 * GB


def test_nobody_knows_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert free_memory(CPU, tmp_path) is None


def test_the_tightest_group_above_a_process_decides_and_files_it_can_drop_do_not_count(tmp_path: Path) -> None:
    root = system(tmp_path, proc__self__cgroup="0::/box/job\n")
    group(root, "box", memory__max=8 * GB, memory__current=5 * GB, memory__stat=f"anon 1\ninactive_file {GB}")
    group(root, "box/job", memory__max="max", memory__current=3 * GB)
    assert free_memory(CPU, root) == 4 * GB


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
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
