"""Cases of bad input, each from a seed: the arguments of a command, and the files that they name, in a folder.

Knows what users can write: options, YAML, data sets, checkpoints, folders of runs. Must not know how it is judged.
"""

import csv
import gzip
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specbench.decoding.method_files import methods, read_method
from specbench.results import journal
from tests.support.fuzz import changes
from tests.support.fuzz.options import given
from tests.support.fuzz.servers import Reply
from tests.support.tinypair import Pair

QUICK = ("--limit", "1", "--max-new-tokens", "4", "--warmup", "0", "--k", "2", "--tier", "eager")
CONFIG: dict[str, Any] = {
    "k": 2, "method": "chain", "limit": 1, "max_new_tokens": 4, "warmup": 0, "temperature": 0.5, "schedule": "constant",
    "top_p": 0.9, "seed": 1, "dtype": "float32", "device": "cpu", "batch": 1, "ignore_eos": True, "column": "prompt",
    "format": "csv",
}  # fmt: skip
SPECIAL = (
    b"k: 1\nk: 2\n", b"a: &a {b: *a}\n", b"method: &a {Speculate: {drafter: *a, model: target, verifier: Rejection}}\n",
    b"a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c]\n"
    b"e: &e [*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e]\ndataset: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",
    b"", b"\0", b"\xff\xfe", b"- 1\n", b"[" * 9000, b"k: 0x" + b"f" * 9000,
    b"!!python/object/apply:os.system [touch x]\n", b"k: !!binary aGVsbG8=\n", b"dataset: 2020-01-01\n",
    b"? [1]\n: 2\n", b"x" * 200_000,
)  # fmt: skip


@dataclass(frozen=True)
class Ground:
    """What all cases begin with: a pair of tiny checkpoints, a data set for them, and the folder of a finished run."""

    pair: Pair
    words: Path
    run: Path
    real: Path  # a run that was measured here and can be continued
    looked_for: tuple[str, ...] = ()  # files of compiled code in a cache that runs would use: of a region, of products
    library: Path | None = None  # machine code that leaves a file in the home when it is loaded
    url: str = ""  # where a case may have a server

    def runs(self, **instead: str) -> tuple[str, ...]:
        """`specbench run` on it, with some options changed."""
        named = {"target": str(self.pair.target), "draft": str(self.pair.draft), "dataset": f"jsonl:{self.words}"}
        return ("run", *(word for name, value in {**named, **instead}.items() for word in (f"--{name}", value)), *QUICK)


@dataclass(frozen=True)
class Case:
    """A command. before: what its process does first; reply: what the server says; bad: whether it must refuse."""

    arguments: tuple[str, ...]
    before: Callable[[], object] = lambda: None
    reply: Reply | None = None
    bad: bool = False


def options(chance: random.Random, place: Path, ground: Ground) -> tuple[str, ...]:
    """Any command with any options."""
    os.mkfifo(place / "pipe")
    return given(chance, ground.runs()[1:], shutil.copytree(ground.run, place / "run"))


def yaml_files(chance: random.Random, place: Path, ground: Ground) -> tuple[str, ...]:
    """A configuration, a grid or a method file."""
    kind = chance.choice(["config", "grid", "method", "method"])
    base = read_method(chance.choice(list(methods()))) if kind == "method" else {**CONFIG}
    if kind == "grid":
        base |= {"pair": [{"target": str(ground.pair.target), "draft": str(ground.pair.draft)}], "k": [1, 2]}
    content = yaml.safe_dump(changes.changed(chance, base, chance.randint(1, 3)), allow_unicode=True).encode()
    what = chance.random()
    content = chance.choice(SPECIAL) if what < 0.15 else changes.spoilt(chance, content) if what < 0.35 else content
    file = place / "in.yaml"
    file.write_bytes(content)
    if kind == "method":
        return (*ground.runs(), "--method", str(file))
    if kind == "grid":
        return ("sweep", str(file), "--limit", "1", "--max-new-tokens", "4")
    return (*ground.runs(), "--config", str(file))


def data_rows(chance: random.Random, place: Path, ground: Ground) -> tuple[str, ...]:
    """A data set: its rows, its bytes, the name of its form, its column and its template."""
    kind = chance.choice(["jsonl", "csv", "text", "parquet"])
    rows = [
        {"id": n, "category": changes.text(chance), "prompt": f"w{n} w2 w3", "turns": ["w1", changes.text(chance)]}
        for n in range(chance.choice([0, 1, 3, 40]))
    ]
    rows = [changes.changed(chance, row) if chance.random() < 0.5 else row for row in rows]
    content = written(kind, rows, chance)
    what = chance.random()
    content = changes.spoilt(chance, content) if what < 0.4 else content
    content = chance.choice(LARGE)() if what > 0.95 else content
    file = place / chance.choice([f"in.{kind}", f"in.{kind}", "in.gz", "in"])
    file.write_bytes(content)
    template = chance.choice(["turns", "id", "nope", changes.text(chance)])
    more = ("--template", template) if chance.random() < 0.4 else ()
    return (*ground.runs(dataset=f"{kind}:{file}"), *more)


LARGE: tuple[Callable[[], bytes], ...] = (
    lambda: b'{"prompt": "' + b"w1 " * 1_000_000 + b'"}\n',
    lambda: b'{"prompt": "w1 w2"}\n' * 100_000,
    lambda: b"w" * (20 << 20),
    lambda: gzip.compress(bytes(64 << 20), 1),
)


def written(kind: str, rows: list[Any], chance: random.Random) -> bytes:
    """Rows in a form; of those that are no mappings nothing but JSON lines can be made."""
    if kind == "csv":
        buffer = io.StringIO()
        csv.writer(buffer).writerows([["id", "prompt"], *([n, row] for n, row in enumerate(rows))])
        return buffer.getvalue().encode(errors="surrogatepass")
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        made = io.BytesIO()
        column = [chance.choice(["w1 w2", "", None, "w1" * 9]) for _ in rows]
        pq.write_table(pa.table({"prompt": pa.array(column, pa.string()), "id": list(range(len(rows)))}), made)
        return made.getvalue()
    return b"".join(changes.as_json(row) + b"\n" for row in rows)


def checkpoints(chance: random.Random, place: Path, ground: Ground) -> tuple[str, ...]:
    """A checkpoint with a damaged file, as target or as draft."""
    role = chance.choice(["target", "target", "draft"])
    folder = shutil.copytree(getattr(ground.pair, role), place / "model")
    file = chance.choice(sorted(folder.iterdir()))
    if file.suffix == ".json" and chance.random() < 0.75:
        file.write_bytes(changes.as_json(changes.changed(chance, json.loads(file.read_bytes()), chance.randint(1, 2))))
    elif file.suffix == ".safetensors":
        file.write_bytes(spoilt_weights(chance, file.read_bytes()))
    else:
        file.write_bytes(changes.spoilt(chance, file.read_bytes()))
    return ground.runs(**{role: str(folder)})


def spoilt_weights(chance: random.Random, content: bytes) -> bytes:
    """A safetensors file with another header, another length of it, or other bytes."""
    size = int.from_bytes(content[:8], "little")
    what = chance.randrange(3)
    if what == 0:
        return chance.choice([0, 1, size - 1, size + 1, 1 << 40, 2**64 - 1]).to_bytes(8, "little") + content[8:]
    if what == 1:
        header = changes.as_json(changes.changed(chance, json.loads(content[8 : 8 + size]), 2))
        return len(header).to_bytes(8, "little") + header + content[8 + size :]
    return changes.spoilt(chance, content, within=size)


def runs(chance: random.Random, place: Path, ground: Ground) -> tuple[str, ...]:
    """The folder of a run in which a line or a table was edited, read by one of the commands that read runs."""
    folder = shutil.copytree(ground.run, place / "run")
    file = folder / chance.choice(["journal.jsonl", "journal.jsonl", "run.json", "results.csv", "samples.csv"])
    if file.name == "journal.jsonl" and chance.random() < 0.8:
        lines = journal.read_bodies(file)
        at = chance.randrange(len(lines))
        lines[at] = changes.changed(chance, lines[at])
        if chance.random() < 0.1:
            chance.shuffle(lines)
        file.write_bytes(b"".join(journal.encode(line) for line in lines if isinstance(line, dict)))
    elif file.name == "run.json" and chance.random() < 0.8:
        file.write_bytes(changes.as_json(changes.changed(chance, json.loads(file.read_bytes()), 2)))
    else:
        file.write_bytes(changes.spoilt(chance, file.read_bytes()))
    file = chance.choice([folder, folder, folder, folder / "results.csv"])
    commands = (
        ("verdict", str(file)),
        ("compare", "--checks", "deterministic", str(ground.run), str(file)),
        ("compare", str(file), str(ground.run)),
        ("predict", "--from-run", str(file)),
        ("sweep", "--resume", str(folder)),
        ("report", str(folder), "--no-png", "--output", "results.html"),
    )
    return chance.choices(commands, weights=(4, 3, 3, 3, 3, 1))[0]  # a report takes seconds


KINDS: dict[str, Callable[[random.Random, Path, Ground], tuple[str, ...]]] = {
    "options": options, "yaml": yaml_files, "rows": data_rows, "checkpoints": checkpoints, "runs": runs,
}  # fmt: skip
