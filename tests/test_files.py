"""Files that no command may wait for, and YAML that says something else than it seems to."""

import errno
import os
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.files import in_units, open_regular, read_whole
from specbench.replacing import replace_text, replacing, writing
from specbench.yaml_files import DIGITS, LARGEST, MOST, parsed, read_yaml


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
    "k: 1\nk: 2": "line 1: the key 'k' stands there twice",
    "a: {b: 1, c: 2, b: 3}": "the key 'b' stands there twice",
    "a: &a {b: *a}": "contains itself",
    "&a [*a]": "contains itself",
    BOMB: f"more than {MOST:,} values",
    f"[{'1,' * MOST}1]": f"more than {MOST:,} values",
    "[" * 5000: "nested too deeply",
    "k: 0x" + "f" * 5000: f"more than {DIGITS} digits",
    "k: " + "9" * 5000: f"more than {DIGITS} digits",
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
        parsed(text)
    assert said in str(refused.value)


def test_yaml_that_is_read() -> None:
    assert parsed("") is None
    assert parsed("a: &x {b: 1}\nc: *x\nd: [*x, *x]") == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}] * 2}
    assert parsed("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}") == {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}


def test_a_yaml_file_has_bounds_too(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b" " * (LARGEST + 1))
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
