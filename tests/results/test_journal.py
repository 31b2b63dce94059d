"""The journal: what is acknowledged is on disk, what was torn is dropped, what was damaged is refused."""

import errno
import os
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.errors import UsageError
from specbench.results.journal import Journal, encode, read_bodies

BODIES = [{"turn": n, "text": text} for n, text in enumerate(["a", "\udcff", "\0", "\n\r\u2028", "é\x1b[31m", '}"{'])]

texts = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


def written(path: Path, bodies: list[dict[str, object]] = BODIES) -> bytes:
    journal = Journal(path)
    for body in bodies:
        journal.append(body)
    journal.close()
    return path.read_bytes()


def test_lines_come_back_as_they_were(tmp_path: Path) -> None:
    content = written(tmp_path / "j")
    assert read_bodies(tmp_path / "j") == BODIES
    assert content.count(b"\n") == len(BODIES)
    assert content.isascii()


@given(st.lists(st.dictionaries(texts, json_values, max_size=4), max_size=4))
@settings(max_examples=40)
def test_whatever_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, bodies: list[dict[str, object]]) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    written(path, bodies)
    assert read_bodies(path) == bodies


def test_a_journal_that_was_cut_anywhere_loses_only_the_line_it_was_cut_in(tmp_path: Path) -> None:
    whole = written(tmp_path / "j")
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        acknowledged = sum(end <= cut for end in ends)
        assert read_bodies(tmp_path / "cut") == BODIES[:acknowledged]
        journal = Journal(tmp_path / "cut")
        journal.append({"after": cut})
        journal.close()
        assert read_bodies(tmp_path / "cut") == [*BODIES[:acknowledged], {"after": cut}]


def test_a_changed_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    whole = written(tmp_path / "j")
    last = len(whole) - len(encode(BODIES[-1]))
    chance = random.Random(0)
    for _ in range(300):
        place = chance.randrange(len(whole))
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        (tmp_path / "bad").write_bytes(changed)
        if place >= last:  # as if the process had died in this line
            assert read_bodies(tmp_path / "bad") == BODIES[:-1]
            continue
        with pytest.raises(UsageError, match=r"bad:\d+: a damaged line .* start a new run"):
            read_bodies(tmp_path / "bad")


@pytest.mark.parametrize("content", [b"secret", b"secret\n", b"{}\n", b'{"crc32"="', None])
def test_what_is_no_journal_is_not_emptied_and_one_that_is_a_link_not_written_to(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "j"
    if content is None:
        written(tmp_path / "elsewhere")
        path.symlink_to("elsewhere")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    said = "is a link" if content is None else "is not the journal of a run, and continuing would empty it"
    with pytest.raises(UsageError, match=rf"^[^\n]*j {said}[^\n]*$"):
        Journal(path)
    assert path.read_bytes() == before
    assert content is not None or read_bodies(path) == BODIES


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_leaves_the_journal_as_it_was_and_is_told_from_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path, write = tmp_path / "j", os.write
    journal = Journal(path)
    journal.append({"n": 1})
    for room in (7, 0):
        left = [room]

        def full(file: int, line: bytes, left: list[int] = left) -> int:
            part = left[0]
            if not part:
                raise OSError(number, os.strerror(number))
            left[0] = 0
            return write(file, line[:part])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match=os.strerror(number)):
                journal.append({"n": 2})
        assert read_bodies(path) == [{"n": 1}]
    journal.append({"n": 3})
    journal.close()
    assert read_bodies(path) == [{"n": 1}, {"n": 3}]


def test_a_line_that_the_system_takes_in_parts_is_whole_and_one_that_is_not_synced_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, journal = os.write, Journal(tmp_path / "j")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: write(file, line[:5]))
        journal.append({"n": 1})
        patch.undo()
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            journal.append({"n": 2})
    journal.close()
    assert read_bodies(tmp_path / "j") == [{"n": 1}]


@pytest.mark.parametrize("body", [b"{" * 100_000 + b"}", b'{"a":1},{"b":2}', b"{\xff}"])
def test_a_body_that_is_no_json_is_damage_whatever_its_checksum(tmp_path: Path, body: bytes) -> None:
    line = b'{"crc32":"%08x","body":%s}\n' % (zlib.crc32(body), body)
    (tmp_path / "j").write_bytes(line + encode({"n": 2}))
    with pytest.raises(UsageError, match="j:1: a damaged line"):
        read_bodies(tmp_path / "j")


def test_a_missing_journal_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file or directory; give the folder"):
        read_bodies(tmp_path / "j")
