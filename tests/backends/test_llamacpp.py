"""The backend `llama.cpp` over a stand-in for llama-server: what it is asked, what is made of it, what is refused."""

import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from specbench.backends import choose
from specbench.backends.engines import install, llamacpp
from specbench.backends.engines.external import Apart, opened
from specbench.backends.engines.llamacpp import LlamaCpp, Server, body_of
from specbench.errors import UnusableModelError, UsageError
from specbench.spec import BASELINE, RunSpec
from tests.support import fake_llama_server
from tests.support.signals import as_a_shell_leaves_them
from tests.support.tinypair import EOS, Pair

NEW, K = 8, 3


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LlamaCpp:
    program = tmp_path_factory.mktemp("bin") / install.PROGRAM
    script = shlex.join([sys.executable, "-I", str(Path(fake_llama_server.__file__))])
    program.write_text(f'#!/bin/sh\nexec {script} "$@"\n')
    program.chmod(0o755)
    return LlamaCpp(program, (60.0, 60.0))


def spec_of(pair: Pair, **more: object) -> RunSpec:
    given = {"target": str(pair.target), "draft": str(pair.draft), "max_new_tokens": NEW, "k": K, "dtype": "float32"}
    return RunSpec.model_validate({**given, "backend": "llama.cpp", **more})


def backend_of(engine: LlamaCpp, pair: Pair, **more: object) -> tuple[Apart, RunSpec]:
    spec = spec_of(pair, **more)
    return opened(engine, [spec]), spec


def options(engine: LlamaCpp, pair: Pair, **more: object) -> list[str]:
    backend, spec = backend_of(engine, pair, **more)
    return list(engine.start(spec, backend.inner.pair, 20)["options"])


def value(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


# --- what is made of its answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2])
def test_both_arms_decode_in_processes_of_their_own(engine: LlamaCpp, pair: Pair, batch: int) -> None:
    backend, spec = backend_of(engine, pair, batch=batch)
    backend.load(4)
    try:
        plain, drafted = (backend.prepare(one, 4)([[1, 2, 3], [EOS - 3]], [0, 1]) for one in (spec.baseline, spec))
        processes = [one.process for one in backend._served.values()]
    finally:
        backend.unload()
    assert [trace.tokens for trace in drafted] == [tuple(range(4, 12)), (EOS - 2, EOS - 1, EOS)]
    assert [trace.tokens for trace in plain] == [trace.tokens for trace in drafted]
    assert [(r.drafted, r.accepted, r.emitted) for r in drafted[0].rounds] == [(0, 0, 1), *[(3, 1, 2)] * 3, (3, 0, 1)]
    assert all(trace.seconds > 0 for trace in (*plain, *drafted))
    assert [process.poll() is None for process in processes] == [False, False]


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("no-start", r"llama\.cpp: it ended with exit code 1 \(error: failed to load model\)"),
        ("dies", r"llama\.cpp: it ended with exit code 3 \(error: out of luck\)"),
        ("hangs", r"llama\.cpp: silent \(the server has not ended its answer in 0\.1 seconds\)"),
        ("garbage", "which is not a completion"),
    ],
)
def test_what_goes_wrong_is_one_line(
    engine: LlamaCpp, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, line: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for logs
    with pytest.raises(UnusableModelError, match=line):
        answered(engine, spec_of(pair), fault)


def answered(engine: LlamaCpp, spec: RunSpec, model: str) -> None:
    server = Server(engine.program, ["-m", f"/models/{model}"], 0.1)
    try:
        server.wait_until(lambda: server.healthy(60.0), 60.0)
        server.decode(spec, [[1]], [0], [])
    finally:
        server.close()


def test_an_interrupt_ends_requests_that_hang(engine: LlamaCpp, pair: Pair) -> None:
    server = Server(engine.program, ["-m", "/models/hangs"], 60.0)
    try:
        server.wait_until(lambda: server.healthy(60.0), 60.0)
        with as_a_shell_leaves_them():
            Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                server.decode(spec_of(pair, batch=2), [[1], [2], [3]], [0, 1, 2], [])
        assert time.monotonic() - began < 30
    finally:
        server.close()


# --- what it is asked -------------------------------------------------------------------------------------------------


def test_it_is_started_with_the_pair_as_gguf_files(engine: LlamaCpp, pair: Pair) -> None:
    words = llamacpp.located(options(engine, pair, batch=2), backend_of(engine, pair)[0].inner.pair)
    assert [Path(value(words, name)).suffix for name in ("-m", "-md")] == [".gguf"] * 2
    assert value(words, "-m") != value(words, "-md")
    wanted = {"-c": "40", "-np": "2", "-ctk": "f32", "-fa": "off", "-ngl": "0", "--spec-type": "draft-simple"}
    assert {name: value(words, name) for name in wanted} == wanted
    assert value(words, "--spec-draft-n-max") == str(K)
    assert "-md" not in options(engine, pair, method=BASELINE)
    assert value(options(engine, pair, dtype="bfloat16"), "-ctk") == "bf16"
    assert value(options(engine, pair, method="prompt-lookup"), "--spec-type") == "ngram-simple"
    assert options(engine, pair, engine_option="llama.cpp.poll=0")[-2:] == ["--poll", "0"]


def test_a_request_says_what_the_spec_says_and_what_changes_its_numbers_stands_in_the_notes(
    engine: LlamaCpp, pair: Pair
) -> None:
    found: dict[str, Any] = body_of(spec_of(pair, temperature=0.5, top_k=7), [1, 2], 5)
    wanted = {"prompt": [1, 2], "n_predict": NEW, "temperature": 0.5, "top_k": 7, "top_p": 1.0, "seed": 5}
    assert {**found, **wanted, "cache_prompt": False, "ignore_eos": False} == found
    backend, spec = backend_of(engine, pair, temperature=1.0, ignore_eos=True)
    notes = " ".join(backend.notes(spec))
    for words in ("llama.cpp 7 (fake)", "forbids the end of a sequence", "it judges by token match"):
        assert words in notes


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"method": "tree-top"}, "has only chains from a draft"),
        ({"method": "block"}, "--method block is Block over ModelDrafter"),
        ({"method": "early-exit"}, "drafts with networks of the target's vocabulary"),
        ({"tier": "compile"}, "--tier: it has one way to execute rounds"),
        ({"dtype": "float64"}, "--dtype float64: use float32"),
        ({"target": "demo", "draft": "demo-draft@llama-68m"}, "write it once with `specbench models grow`"),
    ],
)
def test_what_it_cannot_do_is_one_line(engine: LlamaCpp, pair: Pair, given: dict[str, object], line: str) -> None:
    with pytest.raises((UsageError, UnusableModelError), match=line):
        options(engine, pair, **given)


def test_without_the_program_a_line_says_how_to_get_it(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_ENGINES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(install.LLAMA_SERVER, raising=False)
    with pytest.raises(UnusableModelError, match=r"run `specbench backend install llama\.cpp`"):
        choose.backend_for([spec_of(pair)])
    monkeypatch.setenv(install.LLAMA_SERVER, "/no/such/program")
    with pytest.raises(UnusableModelError, match="there is no program /no/such/program"):
        choose.backend_for([spec_of(pair)])
