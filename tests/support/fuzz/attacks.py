"""Cases of somebody who means harm: servers, hubs, folders, caches and checkpoints that were made to do it.

Knows where trust could be misplaced; must not know how it is judged: code that must not run, and a key that must not be
sent, leave the file MARK in the home of the process, where no command writes.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from specbench.errors import UnusableModelError
from tests.support import hub as fake
from tests.support.fuzz import servers
from tests.support.fuzz.cases import QUICK, Case, Ground
from tests.support.fuzz.processes import KEY, SECRET
from tests.support.hub import Repo, folder_files, official

MARK = "MARK"
LEAVE = f"import os, pathlib; pathlib.Path(os.environ['HOME'], {MARK!r}).touch()\n"
COMPILED = tuple(word if word != "eager" else "compile" for word in QUICK)
PACKED = (*COMPILED, "--quantize", "w8a8")
STRANGER = 65534  # the user nobody
KEYS = (f"{KEY}\n", f"{KEY}\nsecond", f"€{KEY}", f"{KEY}\udcff", f"{KEY} {KEY}", "")
URLS = ("http://", "http://.", "http://a..b", f"http://{'x' * 70}", "http://[fe80::1%25eth0]/", "http://localhost/é",
        "http://localhost:0", "http://localhost:99999", "localhost:80", "http://[::1", "http://a b", "ftp://localhost",
        "https://127.0.0.1:9", "http://127.0.0.1:9", f"http://127.0.0.1:9/?key={KEY}")  # fmt: skip


def server(chance: random.Random, place: Path, ground: Ground) -> Case:
    """A server of completions that is wrong in one way: its answers on the wire, or what they say, its URL, the key for
    it, or the file that names it."""
    wrong = chance.choices(["wire", "says", "url", "key", "file"], weights=(12, 6, 2, 2, 1))[0]
    says, pages = servers.impossible(chance) if wrong == "says" else ({}, ["cpu 3.5\n"])
    way = servers.way_of(chance, ground.url) if wrong == "wire" else servers.plain
    where = chance.choice(["/v1/models", "/metrics", "/v1/completions", "/v1/completions"])
    reply = servers.spoilt(servers.completions(says, pages), way, where, chance.choice([0, 0, 1, 3]))
    url = chance.choice(URLS) if wrong == "url" else ground.url + chance.choice(["", "/v1", "/"])
    options = {"backend": "openai", "url": url, "target": "tiny", "dataset": f"jsonl:{ground.words}"}
    options |= {"baseline-url": ground.url, "k": "3"} if chance.random() < 0.6 else {"method": "baseline"}
    options |= {"limit": "3", "max-new-tokens": "4", "warmup": chance.choice("01"), "batch": chance.choice("124")}
    arguments: tuple[str, ...] = ("run", *(f"--{name}={value}" for name, value in options.items()))
    if wrong == "file":  # whoever wrote it chose the server
        written = {name.replace("-", "_"): yaml.safe_load(value) for name, value in options.items()}
        (place / "in.yaml").write_text(yaml.safe_dump(written))
        reply = servers.watched(reply, lambda _: True, marked(place))
        arguments = ("run", "--config", str(place / "in.yaml"))
    key = chance.choice(KEYS) if wrong == "key" else KEY
    return Case(arguments, lambda: os.environ.update(OPENAI_API_KEY=key), reply)


def hub(chance: random.Random, place: Path, ground: Ground) -> Case:
    """A hub that refuses, redirects, drips, hangs, or does not end."""
    repos = [
        Repo("nope/target", folder_files(ground.pair.target)), Repo("nope/draft", folder_files(ground.pair.draft)),
        official("humaneval"),
    ]  # fmt: skip
    where = chance.choice(["", "/api/", "/api/", "/resolve/", "config.json", "tokenizer", "/storage/", ".safetensors"])
    honest, way = servers.hub(ground.url, SECRET, repos), servers.way_of(chance, ground.url)
    reply = servers.spoilt(honest, way, where, chance.choice([0, 0, 0, 1, 2, 4]))
    reply = servers.watched(reply, lambda asked: asked.headers["Host"].startswith("localhost"), marked(place))
    named = chance.choice([{"target": "nope/target"}, {"draft": "nope/draft"}, {"dataset": "humaneval"}])
    return Case(ground.runs(**named), lambda: ask(ground.url, place.parent), reply)


def marked(place: Path) -> Path:
    """The file that a case may not leave."""
    return place.parent / "home" / MARK


def ask(url: str, place: Path) -> None:
    """Let this process ask the hub of a case, with a token, and keep what it fetches apart."""
    from huggingface_hub import constants
    from transformers import dynamic_module_utils

    fake.use(url, place / "hub", pytest.MonkeyPatch())
    os.environ["HF_TOKEN"] = SECRET
    constants.HF_HUB_DOWNLOAD_TIMEOUT = constants.HF_HUB_ETAG_TIMEOUT = 1
    dynamic_module_utils.HF_MODULES_CACHE = str(place / "modules")


# --- folders ----------------------------------------------------------------------------------------------------------

WRITTEN = ("results.csv", "summary.csv", "samples.csv", "categories.csv", "rounds.parquet", "journal.jsonl", "run.json",
           "report.html", "report.md", ".lock", "plots", "out.html", "verdict.json")  # fmt: skip


def links(chance: random.Random, place: Path, ground: Ground) -> tuple[str, ...]:
    """The folder of a run with links and pipes at the names that a command will write to."""
    run = shutil.copytree(chance.choice([ground.run, *[ground.real] * 4]), place / "run")
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (place / "victim").write_bytes(chance.choice([b"precious", b"precious\n", b"", lines[0], b"".join(lines)]))
    (place / "victims").mkdir()
    (place / "victims" / "a").write_text("precious")
    for name in chance.sample(WRITTEN, chance.randint(1, 4)):
        at = run / (name + chance.choice(["", ".tmp", ".tmp"]))
        to = chance.choice(["../victim", "../victim", "../nothing", "../victims", "/dev/zero", ".", "pipe"])
        at.unlink(missing_ok=True)
        os.mkfifo(at) if to == "pipe" else at.symlink_to(to)
    if chance.random() < 0.5:
        (run / "results.csv").unlink(missing_ok=True)  # so that it is made again
    commands = (
        ("run", "--resume", str(run)), ("report", str(run), "--no-png"), ("verdict", str(run)),
        ("compare", str(ground.run), str(run)), ("report", str(run), "--no-png", "--output", str(run / "out.html")),
    )  # fmt: skip
    return chance.choices(commands, weights=(4, 2, 1, 1, 1))[0]


# --- compiled code ----------------------------------------------------------------------------------------------------


def caches(chance: random.Random, place: Path, ground: Ground) -> Case:
    """A cache in which another user put code under the names that a run looks for."""
    cache = place.parent / "shared" / "cache"
    folder = cache / "specbench"
    file = folder / chance.choice(ground.looked_for or ("regions/x.json",))  # none without a compiler
    file.parent.mkdir(parents=True, mode=0o700)
    packed = file.suffix == ".so" and ground.library is not None
    if packed and ground.library:
        shutil.copy(ground.library, file)
    else:
        file.write_text(json.dumps({"source": LEAVE, "constants": {}, "numbers": {}}))
    for path in (cache, folder, file.parent, file):
        path.chmod(0o600 if path == file else 0o700)
    one = chance.choice([cache, folder, file.parent, file])
    if os.geteuid() == 0 and chance.random() < 0.5:
        for path in (one, *one.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
    else:
        one.chmod(chance.choice([0o777, 0o707, 0o702] if one == cache else [0o777, 0o770, 0o707, 0o722]))
    options = ground.runs()[: -len(QUICK)]
    return Case((*options, *(PACKED if packed else COMPILED)), lambda: without_compiler(cache))


def without_compiler(cache: Path) -> None:
    """Let a run look for compiled code in a folder; what is not there is made empty, of which nothing can be run."""
    from specbench.models.execution import int8_operators
    from specbench.models.execution.region_code import Store

    def compile_nothing(command: list[str], **_: Any) -> None:
        Path(command[command.index("-o") + 1]).touch()

    def stop(_: Store, region: Any, file: Path) -> Any:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        raise UnusableModelError("nothing is compiled here")

    os.environ["SPECBENCH_CACHE"] = str(cache)
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    compiler = SimpleNamespace(run=compile_nothing, CalledProcessError=subprocess.CalledProcessError)
    Store._compiled, int8_operators.subprocess = stop, compiler  # type: ignore[method-assign, assignment]


# --- checkpoints ------------------------------------------------------------------------------------------------------

TEMPLATES: tuple[Any, ...] = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{{ 'a' * 3000000000 }}",
    "{{ 'a' * 30000000 }}", "{{ '%1000000000d' % 5 }}", "{{ 1.5|round(999999999, 'ceil') }}", "{% include '/x' %}",
    "{{ ''.__class__.mro() }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ messages[0].content * 99999 }}",
    "{{ raise_exception('\x1b[31m' * 9999) }}", "{" * 9999, "{{ " + "(" * 9999, "{{ strftime_now('%' * 999999) }}",
    5, [5], {"default": 5}, {},
)  # fmt: skip
GROWS, LONG = {"type": "Replace", "pattern": {"String": "w"}, "content": "w" * 10}, "w" * 10**6
STEPS = ([GROWS] * 5, [GROWS] * 9, [GROWS] * 99_999, [{"type": "Prepend", "prepend": LONG}] * 99)
SLOW = {"type": "Split", "pattern": {"Regex": "([w0-9 ]+)+$a"}, "behavior": "Isolated", "invert": False}
NAMES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "adapter_config.json", "preprocessor_config.json", "model.safetensors.index.json",
)  # fmt: skip
WEIGHTS = "model.safetensors"
CODE = f"""{LEAVE}
from transformers import LlamaConfig as Own, LlamaForCausalLM as OwnModel, PreTrainedTokenizerFast as OwnWords
"""
CLASSES = {"AutoConfig": "@own.Own", "AutoModelForCausalLM": "@own.OwnModel", "AutoTokenizer": [None, "@own.OwnWords"]}


def edited(file: Path, **keys: Any) -> None:
    """Set keys of a JSON file, which need not be there yet."""
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**before, **keys}))


def template(chance: random.Random, model: Path, ground: Ground) -> Case:
    """A chat template that does not end, grows, or is none."""
    found, file = chance.choice(TEMPLATES), model / "chat_template.jinja"
    if isinstance(found, str) and chance.random() < 0.5:
        file.write_text(found)
    else:
        edited(model / "tokenizer_config.json", chat_template=found)
    how = str(file) if file.exists() and chance.random() < 0.5 else "always"
    return Case((*ground.runs(target=str(model)), "--chat-template", how))


def words(chance: random.Random, model: Path, ground: Ground) -> Case:
    """A tokenizer that makes texts longer, or takes long."""
    part = chance.choice(["normalizer", "decoder"])
    long = {part: {"type": "Sequence", f"{part}s": chance.choice(STEPS)}}
    edited(model / "tokenizer.json", **chance.choice([long, long, {"pre_tokenizer": SLOW}]))
    return Case(ground.runs(target=str(model)))


def pipe(chance: random.Random, model: Path, ground: Ground) -> Case:
    """A pipe or a device in place of a file."""
    file = model / chance.choice([*NAMES, WEIGHTS])
    file.unlink(missing_ok=True)
    chance.choice([lambda: os.mkfifo(file), lambda: file.symlink_to("/dev/zero"), lambda: file.symlink_to(".")])()
    return Case(ground.runs(target=str(model)))


def shard(chance: random.Random, model: Path, ground: Ground) -> Case:
    """Weights by an index that names a file outside, none, or nothing that there is."""
    outside = chance.choice(["../out.safetensors", str(ground.pair.target / WEIGHTS)])
    (model / WEIGHTS).rename(model.parent / "out.safetensors")
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
    maps = [dict.fromkeys(names, outside), dict.fromkeys(names, outside), {}, {"a": 5}, {"a": "."}, [], {"": ""}]
    edited(model / f"{WEIGHTS}.index.json", metadata={}, weight_map=chance.choice(maps))
    return Case(ground.runs(target=str(model)), bad=True)


def deep(chance: random.Random, model: Path, ground: Ground) -> Case:
    """A description without an end to its brackets."""
    (model / chance.choice(NAMES)).write_bytes(chance.choice(servers.NESTED))
    return Case(ground.runs(target=str(model)))


def numbers(chance: random.Random, model: Path, ground: Ground) -> Case:
    """Weights in a type that no network computes in, or a way of quantising that nobody knows."""
    import torch
    from safetensors.torch import load_file, save_file

    kind = chance.choice([torch.int8, torch.bool, torch.complex64, torch.int64])
    if chance.random() < 0.7:
        save_file({name: one.to(kind) for name, one in load_file(model / WEIGHTS).items()}, model / WEIGHTS)
    else:
        edited(model / "config.json", quantization_config={"quant_method": "evil"})
    return Case(ground.runs(target=str(model)), bad=True)


def code(chance: random.Random, model: Path, ground: Ground) -> Case:
    """A description that names code: of its own folder, or of another repository, trusted or not."""
    trusted, elsewhere, hosted = chance.random() < 0.6, chance.random() < 0.5, chance.random() < 0.4
    said = json.dumps(CLASSES).replace("@", "evil/repo--" if elsewhere else "")
    for name in chance.sample([*NAMES[:2], "tokenizer_config.json", "preprocessor_config.json"], chance.randint(1, 2)):
        edited(model / name, auto_map=json.loads(said), **({"model_type": "own"} if name == NAMES[0] else {}))
    edited(model / "tokenizer_config.json", tokenizer_class="OwnWords")
    may = trusted and not elsewhere and not hosted  # the folder that was named, by whoever said that it is trusted
    (model / "own.py").write_text(CODE.removeprefix(LEAVE) if may else CODE)
    evil = folder_files(ground.pair.target) | {"own.py": CODE.encode()}
    repos = [Repo("evil/repo", evil), Repo("nope/x", folder_files(model))]
    reply = servers.spoilt(servers.hub(ground.url, SECRET, repos), servers.plain, "", 0)
    arguments = (*ground.runs(target="nope/x" if hosted else str(model)), *("--trust-remote-code",) * trusted)
    return Case(arguments, lambda: ask(ground.url, model.parents[1]), reply)


def forged(chance: random.Random, place: Path, ground: Ground) -> Case:
    """A checkpoint that was made to do harm."""
    way = chance.choice([template, template, words, pipe, shard, deep, numbers, code, code])
    return way(chance, shutil.copytree(ground.pair.target, place / "model"), ground)


KINDS: dict[str, Callable[[random.Random, Path, Ground], Case | tuple[str, ...]]] = {
    "server": server, "hub": hub, "links": links, "caches": caches, "forged": forged,
}  # fmt: skip
