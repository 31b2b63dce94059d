"""Token caches: written shard by shard, read from disk, refused where they are another's or damaged."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest

from specbench.errors import UsageError
from specbench.training.cache import (
    FILE,
    SIZE,
    Example,
    Manifest,
    Origin,
    TokenCache,
    cached,
    features,
    held_out,
    locked,
    read_manifest,
    sha256_of,
)

V = 50
ORIGIN = Origin(
    kind="answers", target="demo", revision="c0ffee", weights="as they are", tokenizer_sha256="a" * 64, vocabulary=V,
    chat_template_sha256="b" * 64, prompts_sha256="d" * 64, max_new_tokens=4, dtype="float32",
)  # fmt: skip


def example(number: int, category: str = "all") -> Example:
    return Example([number % V, *range(1 + number % 7), V - 1], 1 + number % 2, category, f"p{number // 2}")


def write(path: Path, examples: list[Example], origin: Origin = ORIGIN, size: int = 40) -> Path:
    """A complete cache, every example a part of its source; opened, a small one may be refused."""
    with contextlib.suppress(UsageError):
        cached(path, origin, parts_of(examples), size=size)
    assert read_manifest(path).complete
    return path


def parts_of(examples: list[Example], killed_after: int | None = None) -> Callable[[Manifest], Iterator[list[Example]]]:
    """The examples that are not on disk, one by one, until the process dies."""

    def parts(manifest: Manifest) -> Iterator[list[Example]]:
        for number, one in enumerate(examples[manifest.parts :], manifest.parts):
            if number == killed_after:
                raise KeyboardInterrupt
            yield [one]

    return parts


def begin(path: Path, count: int, size: int = 40) -> int:
    """A cache whose writer dies after so many examples; how many of them are on disk."""
    with pytest.raises(KeyboardInterrupt):
        cached(path, ORIGIN, parts_of(EXAMPLES, count), size=size)
    return read_manifest(path).parts


EXAMPLES = [example(n, "code" if n < 60 else "chat") for n in range(120)]


def complaint(path: Path, expected: Origin = ORIGIN) -> str:
    with pytest.raises(UsageError) as caught:
        TokenCache.open(path, expected)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 2
    return str(caught.value)


# --- writing and reading ----------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back_by_number(tmp_path: Path) -> None:
    cache = TokenCache.open(write(tmp_path / "c", EXAMPLES), ORIGIN)
    found = [*cache.train, *cache.held_out]
    assert sorted(found, key=EXAMPLES.index) == EXAMPLES
    assert cache.train[-1] == list(cache.train)[-1]
    assert cache.manifest.rows == len(cache.every) == 120
    assert sum(shard.tokens for shard in cache.manifest.shards) == sum(len(one.ids) for one in EXAMPLES)
    assert len(cache.manifest.shards) > 10
    with pytest.raises(IndexError):
        cache.train[len(cache.train)]


def test_lengths_are_known_without_reading_examples(tmp_path: Path) -> None:
    cache = TokenCache.open(write(tmp_path / "c", EXAMPLES), ORIGIN)
    assert cache.train.lengths.tolist() == [len(one.ids) for one in cache.train]
    assert cache.held_out.lengths.tolist() == [len(one.ids) for one in cache.held_out]


def test_counts_are_of_what_is_learned(tmp_path: Path) -> None:
    cache = TokenCache.open(write(tmp_path / "c", EXAMPLES), ORIGIN)
    expected = np.zeros(V, dtype=np.int64)
    for one in cache.train:
        np.add.at(expected, one.ids[one.start :], 1)
    assert cache.counts().tolist() == expected.tolist()


def test_examples_stay_on_disk(tmp_path: Path) -> None:
    """A cache of 8 MB is opened, counted and walked through in a part of that, however many shards there are."""
    many = [Example(list(range(1, V)) * 200, 1, "all", f"p{n}") for n in range(200)]
    path = write(tmp_path / "c", many, size=1 << 16)
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        cache = TokenCache.open(path, ORIGIN)
        learned = int(cache.counts().sum())
        assert sum(len(one.ids) - 1 for one in cache.train) == learned
    finally:
        pa.set_memory_pool(usual)
    assert cache.every.lengths.sum() * 4 > 7 << 20
    assert 0 < pool.max_memory() < 2 << 20


def test_nothing_is_written_outside_and_no_one_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("HF_CACHE_HOME", "HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, str(tmp_path / "home"))
    cache = TokenCache.open(write(tmp_path / "a[1] *", EXAMPLES), ORIGIN)
    assert len(list(cache.train)) + len(cache.held_out) == 120
    assert os.listdir(tmp_path) == ["a[1] *"]
    assert capfd.readouterr() == ("", "")


def test_a_cache_is_used_again_as_it_lies_there(tmp_path: Path) -> None:
    write(tmp_path / "c", EXAMPLES)
    before = files(tmp_path / "c")
    found = [cached(tmp_path / "c", ORIGIN, never) for _ in range(2)]
    assert [list(one.train) for one in found] == [list(found[0].train)] * 2
    assert before == files(tmp_path / "c")


def never(_: Manifest) -> Iterator[list[Example]]:
    raise AssertionError("it is complete")


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


# --- cut off ----------------------------------------------------------------------------------------------------------


def test_a_killed_writer_goes_on_to_the_same_files(tmp_path: Path) -> None:
    write(tmp_path / "whole", EXAMPLES)
    for killed_after in (3, 11, 50):
        path = tmp_path / f"killed-{killed_after}"
        assert killed_after - 7 < begin(path, killed_after) <= killed_after
        (path / ".000099.arrow.0123456789abcdef.tmp").write_bytes(b"the write that it died in")
        assert files(write(path, EXAMPLES)) == files(tmp_path / "whole")


def test_a_file_that_the_manifest_does_not_name_is_written_again(tmp_path: Path) -> None:
    """The process dies between a file and the manifest."""
    write(tmp_path / "whole", EXAMPLES)
    path = tmp_path / "c"
    assert begin(path, 0) == 0
    (path / "000000.arrow").write_bytes((tmp_path / "whole" / "000003.arrow").read_bytes())
    assert files(write(path, EXAMPLES)) == files(tmp_path / "whole")


def test_two_processes_do_not_write_one_cache(tmp_path: Path) -> None:
    with locked(tmp_path / "c"), pytest.raises(UsageError, match="written by another process"):
        cached(tmp_path / "c", ORIGIN, never)
    write(tmp_path / "c", EXAMPLES)


def test_a_full_disk_is_one_line_and_what_was_written_stays(
    tmp_path: Path, largest_file: Callable[[int], None]
) -> None:
    path = tmp_path / "c"
    kept = begin(path, 30)
    largest_file(20_000)
    large = Example([i * i * 7919 % 10007 % V for i in range(60_000)], 1, "", "p")
    with pytest.raises(UsageError, match=r"^cannot write the token cache .*; what is written stays, and the same"):
        cached(path, ORIGIN, lambda _: iter([[large]]))
    assert (read_manifest(path).parts, read_manifest(path).complete) == (kept, False)
    assert kept > 20
    assert not list(path.glob(".*.tmp"))
    largest_file(-1)
    cache = cached(path, ORIGIN, parts_of(EXAMPLES))
    assert list(cache.every) == EXAMPLES


@pytest.mark.slow
def test_two_processes_open_one_cache_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "c", EXAMPLES)
    code = (
        "import sys; from pathlib import Path; from tests.training.test_token_cache import ORIGIN, TokenCache\n"
        "print(sum(len(one.ids) for one in TokenCache.open(Path(sys.argv[1]), ORIGIN).train))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate(timeout=120)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert {int(text) for text in said} == {sum(len(one.ids) for one in TokenCache.open(path, ORIGIN).train)}


@pytest.fixture
def largest_file() -> Iterator[Callable[[int], None]]:
    """Lets no file become larger than so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "smollm2"}, "another target: demo there, smollm2 here; delete this folder to build it again"),
        ({"revision": "f00d"}, "another revision of the target: c0ffee there, f00d here"),
        ({"weights": "int8"}, "another version of the target's weights: as they are there, int8 here"),
        ({"tokenizer_sha256": "e" * 64}, "another tokenizer: aaaaaaaaaaaa there, eeeeeeeeeeee here"),
        ({"chat_template_sha256": ""}, "another chat template: bbbbbbbbbbbb there, none here"),
        ({"prompts_sha256": "e" * 64}, "another set of texts or prompts"),
        ({"temperature": 0.7}, "another temperature: 0.0 there, 0.7 here"),
        ({"top_k": 5}, "another top-k: none there, 5 here"),
        ({"max_new_tokens": 8}, "another limit of new tokens: 4 there, 8 here"),
        ({"samples": 2}, "another number of samples per prompt: 1 there, 2 here"),
        ({"seed": 1}, "another seed: 0 there, 1 here"),
        ({"vocabulary": 49}, "another vocabulary: 50 there, 49 here"),
        ({"kind": "text"}, "another kind (answers or text): answers there, text here"),
    ],
)
def test_another_origin_is_refused_with_both_values(tmp_path: Path, change: dict[str, object], said: str) -> None:
    wanted = ORIGIN.model_copy(update=change)
    assert begin(tmp_path, 2, size=0) == 2
    assert said in complaint(tmp_path, wanted)
    with pytest.raises(UsageError, match="was made with another"):
        cached(tmp_path, wanted, never)


def test_a_cache_that_holds_nothing_yet_is_begun_anew(tmp_path: Path) -> None:
    assert begin(tmp_path, 3) == 0
    other = ORIGIN.model_copy(update={"temperature": 1.0})
    assert list(TokenCache.open(write(tmp_path, EXAMPLES, other), other).train)


def test_text_is_its_tokenizers_alone(tmp_path: Path) -> None:
    text = ORIGIN.model_copy(update={"kind": "text", "length": 8})
    other = text.model_copy(update={"target": "smollm2", "weights": "int8", "temperature": 1.0, "dtype": "bfloat16"})
    write(tmp_path, EXAMPLES, text)
    assert TokenCache.open(tmp_path, other).manifest.rows == 120
    assert "another length of windows: 8 there, 9 here" in complaint(tmp_path, text.model_copy(update={"length": 9}))


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "c", EXAMPLES)
    shard = path / "000001.arrow"
    content, good = shard.read_bytes(), (path / FILE).read_text()
    for bad in (content[:-10], content[:-1] + b"x", b""):
        shard.write_bytes(bad)
        assert "is damaged (000001.arrow is not the file that was written)" in complaint(path)
    shard.unlink()
    assert "000001.arrow: No such file" in complaint(path)
    shard.write_bytes(content)
    for text, said in (
        ("{", "manifest.json is damaged (JSON: "),
        (good.replace('"complete": true', '"complete": 1'), "(complete: Input should be a valid boolean)"),
        (good.replace("000001.arrow", "../../etc/x.arrow"), "(shards.1.file: "),
        (good.replace('"version": 2', '"version": 1'), "written by another version of specbench"),
        ("[" * 10_000, "manifest.json is damaged"),
    ):
        (path / FILE).write_text(text)
        assert said in complaint(path)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"ids": [[1, V]], "start": [1]}, "token ids that its vocabulary does not have"),
        ({"ids": [[1, -1]], "start": [1]}, "token ids that its vocabulary does not have"),
        ({"ids": [[1, 2]], "start": [2]}, "examples without text"),
        ({"ids": [[1, 2]], "start": [0]}, "examples without text"),
        ({"ids": [[1, None]], "start": [1]}, "examples without text"),
        ({"ids": [None], "start": [1]}, "examples without text"),
        ({"ids": [[]], "start": [1]}, "examples without text"),
        ({"ids": [["1", "2"]], "start": [1]}, "has other columns or rows"),
        ({"ids": [[1, 2], [1, 2]], "start": [1, 1]}, "has other columns or rows"),
        (None, "000000.arrow: "),
        ({}, "has other columns or rows"),
    ],
)
def test_a_forged_shard_with_the_right_checksum(
    tmp_path: Path, columns: dict[str, list[object]] | None, said: str
) -> None:
    """Who can change a shard can change the manifest as well."""
    path = write(tmp_path, EXAMPLES[:6], size=SIZE)
    file, held = path / "000000.arrow", read_manifest(path)
    if columns is None:
        file.write_bytes(file.read_bytes()[:-100])
    else:
        count = len(columns.get("start", ()))
        known = features().arrow_schema if columns and columns["ids"] != [["1", "2"]] else None
        table = pa.Table.from_pydict({**columns, "category": [""] * count, "prompt": [""] * count}, known)
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    shard = held.shards[0].model_copy(update={"sha256": sha256_of(file), "rows": 1})
    (path / FILE).write_text(held.model_copy(update={"shards": (shard,)}).model_dump_json())
    assert said in complaint(path)


def test_what_has_no_text_or_nothing_to_hold_out(tmp_path: Path) -> None:
    assert "has no text to learn from" in complaint(write(tmp_path / "a", []))
    assert "one more is needed to be held out" in complaint(write(tmp_path / "b", [example(0), example(1)]))


def test_ids_beyond_the_vocabulary_are_not_written(tmp_path: Path) -> None:
    for ids in ([1, V], [-1, 2]):
        with pytest.raises(UsageError, match="p: the tokenizer gives ids that the target's 50 embeddings do not"):
            cached(tmp_path, ORIGIN, parts_of([Example(ids, 1, "", "p")]))
    assert read_manifest(tmp_path).rows == 0


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other files \(mine.txt …\): a token cache needs its own folder"):
        cached(tmp_path, ORIGIN, never)
    with pytest.raises(UsageError, match=r"cannot write the token cache .*File exists"):
        cached(tmp_path / "mine.txt", ORIGIN, never)


# --- held out ---------------------------------------------------------------------------------------------------------


def division(prompts: list[tuple[str, str]]) -> list[bool]:
    """Whether each of some (prompt, category) is held out."""
    return held_out(*zip(*prompts, strict=True)).tolist()


def test_about_one_prompt_in_twenty_is_held_out() -> None:
    found = division([(f"set/{n}", "all") for n in range(4000)])
    assert 0.04 < sum(found) / 4000 < 0.06


def test_every_category_of_several_prompts_has_some_on_both_sides() -> None:
    prompts = [(f"{size}/{n % size}", f"of {size}") for size in (1, 2, 3, 4, 9) for n in range(3 * size)]
    found = list(zip(prompts, division(prompts), strict=True))
    for size in (2, 3, 4, 9):
        assert {held for (_, category), held in found if category == f"of {size}"} == {True, False}
    assert {held for (_, category), held in found if category == "of 1"} == {False}


def test_what_belongs_to_one_prompt_stays_together() -> None:
    prompts = [(f"p{n % 40}", "all") for n in range(400)]
    sides = {}
    for (prompt, _), held in zip(prompts, division(prompts), strict=True):
        assert sides.setdefault(prompt, held) == held
    assert set(sides.values()) == {True, False}
