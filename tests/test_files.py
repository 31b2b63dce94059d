"""Files that no command may wait for, and YAML that says something else than it seems to."""

import errno
import os
import secrets
import stat
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.files import (
    LARGEST_YAML,
    MOST_DIGITS,
    MOST_VALUES,
    clear_unfinished,
    filling,
    in_units,
    open_own,
    open_regular,
    own_folder,
    parsed_yaml,
    read_whole,
    read_yaml,
    replace_text,
    replacing,
    writing,
)


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    assert read_whole(tmp_path / "a") == b"x" * (3 << 20)
    assert read_whole(tmp_path / "a", 3 << 20) == b"x" * (3 << 20)


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 40)  # without a byte on disk
    with pytest.raises(OSError, match="it is larger than 1 GiB"):
        read_whole(tmp_path / "a")


def test_nor_what_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    real = Path.stat(tmp_path / "a")
    small = os.stat_result((*real[:6], 0, *real[7:]))  # as files of /proc say of themselves
    with monkeypatch.context() as patch:
        patch.setattr("specbench.files.PART", 10)
        patch.setattr(Path, "stat", lambda path: small)
        with pytest.raises(OSError, match="it is larger than 100 bytes"):
            read_whole(tmp_path / "a", 100)


def test_folders_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # an open that waits would wait for a writer
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(OSError, match="a pipe or a device"):
            open_regular(path)
    with pytest.raises(IsADirectoryError, match="a folder"):
        open_regular(tmp_path)


def test_sizes_in_words() -> None:
    assert [in_units(size) for size in (1 << 30, 16 << 20, 128 << 10, 1000, 0)] == [
        "1 GiB", "16 MiB", "128 KiB", "1,000 bytes", "0 bytes"]  # fmt: skip


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(20)
)
WRONG = {
    "k: 1\nk: 2": "line 1: the key 'k' occurs twice",
    "a: {b: 1, c: 2, b: 3}": "the key 'b' occurs twice",
    "a: &a {b: *a}": "contains itself",
    "&a [*a]": "contains itself",
    BOMB: f"more than {MOST_VALUES:,} values",
    f"[{'1,' * MOST_VALUES}1]": f"more than {MOST_VALUES:,} values",
    "[" * 5000: "nested too deeply",
    "k: 0x" + "f" * 5000: f"more than {MOST_DIGITS} digits",
    "k: " + "9" * 5000: f"more than {MOST_DIGITS} digits",
    "a: !!python/object/apply:os.system [ls]": "could not determine a constructor",
    "a: 1\n---\na: 2": "expected a single document",
    "a: \x1b": "special characters are not allowed",
    "a: [": "expected the node content",
    "a: *b": "found undefined alias",
    "? [1]\n: 2": "unhashable key",
    "2020-99-99": "month must be in 1..12",
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=[text[:20] for text in WRONG])
def test_yaml_that_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        parsed_yaml(text)
    assert said in str(refused.value)


def test_yaml_that_is_read() -> None:
    assert parsed_yaml("") is None
    assert parsed_yaml("a: &x {b: 1}\nc: *x\nd: [*x, *x]") == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}] * 2}
    assert parsed_yaml("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}") == {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}


def test_a_yaml_file_has_bounds_too(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b" " * (LARGEST_YAML + 1))
    with pytest.raises(OSError, match="larger than 128 KiB"):
        read_yaml(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        read_yaml(tmp_path / "a.yaml")


def test_a_file_that_cannot_be_written_whole_is_not_replaced_and_leaves_no_part(tmp_path: Path) -> None:
    replace_text(tmp_path / "a", "first")
    with pytest.raises(UsageError, match=r"^cannot write the list: No space left on device; free some space$"):
        write_on_a_full_disk(tmp_path / "a")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "first")]


def write_on_a_full_disk(path: Path) -> None:
    with writing("the list", "free some space"), replacing(path) as temporary:
        temporary.write_text("a part")
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside the folder that is written to."""
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_text("precious")
    return tmp_path / "victim"


@pytest.mark.parametrize("name", ["a", "a.tmp"])
def test_what_is_written_follows_no_link(victim: Path, name: str) -> None:
    folder = victim.parent / "run"
    (folder / name).symlink_to("../victim")
    replace_text(folder / "a", "new")
    assert (victim.read_text(), (folder / "a").read_text()) == ("precious", "new")
    assert not (folder / "a").is_symlink()


def test_nor_one_that_has_the_random_name(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = victim.parent / "run"
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    (folder / f".a.{'0' * 16}.tmp").symlink_to("../victim")
    with pytest.raises(FileExistsError):
        replace_text(folder / "a", "new")
    assert (victim.read_text(), (folder / "a").exists()) == ("precious", False)


def test_a_pipe_at_the_name_of_a_temporary_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tmp")
    replace_text(tmp_path / "a", "new")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe or a device"):
        replace_text(tmp_path / "pipe", "new")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_has_the_permissions_of_any_new_one_and_a_name_of_any_length(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        replace_text(tmp_path / ("é" * 126), "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / ("é" * 126)).stat().st_mode) == 0o666 & ~mask


def test_what_a_kill_left_is_deleted_and_nothing_else(victim: Path) -> None:
    folder = victim.parent / "run"
    ours, other, link = (folder / f".{name}.{digit * 16}.tmp" for name, digit in (("a", "0"), ("b", "1"), ("a", "2")))
    kept = [other, link, folder / "a.tmp", folder / ".a.tmp"]
    for file in (ours, other, *kept[2:]):
        file.write_text("a part")
    link.symlink_to("../victim")
    clear_unfinished(folder, "a")
    assert sorted(folder.iterdir()) == sorted(kept)
    clear_unfinished(folder)
    assert sorted(folder.iterdir()) == sorted(kept[1:])
    assert victim.read_text() == "precious"


def test_files_that_belong_together_replace_links_and_appear_in_order(
    victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moved, real = victim.parent / "run", list[str](), os.replace
    (folder / "a").symlink_to("../victim")
    (folder / "inner").symlink_to("..")
    monkeypatch.setattr(os, "replace", lambda old, new: (moved.append(Path(new).name), real(old, new)))
    with filling(folder, "a") as scratch:
        (scratch / "a").write_text("new")
        (scratch / "b").write_text("new")
    with pytest.raises(OSError, match="a link"):
        fill_inside(folder)
    assert (moved, victim.read_text()) == (["b", "a"], "precious")
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "inner"]


def fill_inside(folder: Path) -> None:
    with filling(folder) as scratch:
        (scratch / "inner").mkdir()
        (scratch / "inner" / "victim").write_text("new")


@pytest.mark.parametrize("bad", ["a link", "a dangling link", "a pipe", "a folder"])
def test_a_file_that_is_written_in_its_place_is_a_regular_one(victim: Path, bad: str) -> None:
    path = victim.parent / "run" / "a"
    {
        "a link": lambda: path.symlink_to("../victim"),
        "a dangling link": lambda: path.symlink_to("../nothing"),
        "a pipe": lambda: os.mkfifo(path),
        "a folder": path.mkdir,
    }[bad]()
    with pytest.raises(UsageError, match="is a link, or not a file"):
        open_own(path)
    assert sorted(file.name for file in victim.parent.iterdir()) == ["run", "victim"]


def test_a_folder_that_is_written_to_is_no_link(victim: Path) -> None:
    inner = own_folder(victim.parent / "run" / "inner")
    assert own_folder(inner).is_dir()
    (victim.parent / "run" / "link").symlink_to("..")
    with pytest.raises(OSError, match="a link, not a folder"):
        own_folder(victim.parent / "run" / "link")
