"""Servers that are started here, over a stand-in for vLLM's: what they are started with, how they fail and end."""

import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.backends.base import Held
from specbench.backends.choose import backend_for
from specbench.backends.engines import arms, client, install, started
from specbench.backends.engines.started import Started
from specbench.backends.roles import carries
from specbench.errors import ServerError, SpecbenchError, UnusableModelError, UsageError
from specbench.measure import grid
from specbench.measure.fit import draft_memory
from specbench.measure.lossless import losslessness_of
from specbench.spec import BASELINE, RunSpec
from specbench.wording import gigabytes
from tests.support import fake_engine
from tests.support.frontdoor import Command
from tests.support.signals import MAIN
from tests.support.tinypair import Pair, prompts

NEW, K = 48, 3  # of the recorded streams
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with a file for every engine that was started; none of their processes is left at the end."""
    program, folder = tmp_path / "bin" / "python", tmp_path / "begun"
    folder.mkdir()
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -I {shlex.quote(str(fake_engine.__file__))} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv(install.VLLM_PYTHON, str(program))
    monkeypatch.setenv("FAKE_ENGINES", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for logs
    yield folder
    assert gone(folder)


def engines(folder: Path) -> list[dict[str, Any]]:
    """The engines that were started, in order."""
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def left(folder: Path) -> list[int]:
    """The processes of engines that have not ended."""
    return [number for one in engines(folder) for number in one["ids"] if alive(number)]


def gone(folder: Path) -> bool:
    """Whether the processes end, which takes a moment after a signal, and longer where they ignore the first one."""
    until = time.monotonic() + 30
    while left(folder) and time.monotonic() < until:
        time.sleep(0.02)
    return not left(folder)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def spec_of(pair: Pair, **more: object) -> RunSpec:
    given = {"target": str(pair.target), "draft": str(pair.draft), "max_new_tokens": NEW, "k": K}
    return RunSpec.model_validate({**given, "backend": "vllm-serve", **more})


def opened(pair: Pair, *faults: str, **more: object) -> tuple[Started, RunSpec]:
    spec = spec_of(pair, **{"server_args": shlex.join(["--fault", *faults])} if faults else {}, **more)
    backend = backend_for([spec])
    assert isinstance(backend, Started)
    return backend, spec


# --- as they are measured ---------------------------------------------------------------------------------------------


def test_both_arms_are_started_measured_and_ended(command: Command, begun: Path, pair: Pair, tmp_path: Path) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    common = ("--target", pair.target, "--draft", pair.draft, "--dataset", data, "--max-new-tokens", NEW)
    row = command("run", "--backend", "vllm-serve", *common, "--k", K, "--server-args", "--max-model-len 64").row()
    assert row["load_average"] == "", "the servers are ours, and so is their load"
    wanted = {"acceptance_length": "4.0", "acceptance_joint": "1 1 1", "lossless": "identical", "method": "chain"}
    assert {name: row[name] for name in wanted} == wanted
    assert row["acceptance_from"] == "each request (metrics.speculative_decoding)"
    assert "started with --max-model-len 64 --speculative-config" in row["engine_notes"]
    words = [arms.value(one["words"], arms.CONFIG) for one in engines(begun)]
    drafting = {"method": "draft_model", "model": str(pair.draft), "num_speculative_tokens": K}
    assert [json.loads(word) for word in words if word] == [drafting]
    assert words.count(None) == 1, "the baseline"
    assert left(begun) == []


def test_a_run_is_continued_by_its_words(command: Command, begun: Path, pair: Pair, tmp_path: Path) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    common = ("--target", pair.target, "--draft", pair.draft, "--dataset", data, "--max-new-tokens", NEW)
    words = ("--server-args", "--max-model-len 64", "--spec-config", '{"num_speculative_tokens":3,"method":"ngram"}')
    first = command("run", "--backend", "vllm-serve", *common, *words, "--limit", 1, "--warmup", 0).ok()
    more = ("run", "--resume", first.folder, "--limit", 2)
    for given, option in (((), "--server-args"), (words[:2], "--spec-config")):
        assert f"review it, then give the same {option} on the command line" in command(*more, *given).line
    assert "no use for the words" in command(*more, *words, "--spec-args", "--more").line
    assert len(engines(begun)) == 2
    found = command(*more, *words)
    assert (found.code, len(engines(begun)), len(found.samples())) == (0, 4, 2), found.err


def test_arms_take_turns_where_memory_is_not_enough(begun: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, spec = opened(pair)
    monkeypatch.setattr(started, "free", lambda: [100 - 60 * len(backend.running)])
    decodes = [backend.prepare(one, 4) for one in (spec.baseline, spec)]
    assert len(left(begun)) == 2, "one server and its child"
    for _ in range(2):
        for decode in decodes:
            decode([[1, 2]], [0])
    backend.unload()
    assert len(engines(begun)) == 2 + 4
    assert started.IN_TURN in backend.warnings


def test_arms_with_the_same_words_share_a_server(begun: Path, pair: Pair) -> None:
    backend, spec = opened(pair)
    for one in (spec, spec.with_(batch=4), spec.with_(temperature=1.0)):
        backend.prepare(one, 4)
    assert (len(engines(begun)), len(left(begun))) == (1, 2)
    backend.unload()


def test_lookups_that_keep_answers_are_known_and_every_load_has_fresh_servers(begun: Path, pair: Pair) -> None:
    """They would find what they answered to the same prompts, and a cache would hold those."""
    backend, spec = opened(pair, spec_config='{"method": "suffix", "num_speculative_tokens": 3}')
    assert (carries(spec), carries(spec.with_(spec_config="ngram"))) == ("suffix", "")
    backend.prepare(spec, 4)
    backend.keep([spec.with_(batch=4)])
    assert left(begun) == []


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_draft_that_does_not_fit_is_left_out_before_a_server_starts(
    command: Command, begun: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = (started.network_of(str(name), None, False) for name in (pair.target, pair.draft))
    free = target.weights + target.cache(NEW + K, 1) + draft.weights
    monkeypatch.setattr(started, "free", lambda: [free])
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    common = (*pair.options, "--dataset", data, "--max-new-tokens", NEW, "--warmup", 0, "--k", K)
    found = command("run", "--backend", "vllm-serve", *common, "--spec-config", "draft-model", "--spec-config", "ngram")
    dropped, kept = found.table()
    assert (dropped["status"], kept["status"], found.code) == ("oom", "ok", 6)
    size = int(dropped["memory_estimate"])
    assert size == free + draft.cache(NEW + K, 1)
    assert dropped["error"].startswith(f"it takes about {gigabytes(size)} of the memory of cpu, and {gigabytes(free)}")
    assert all("draft_model" not in json.dumps(one["words"]) for one in engines(begun))
    spec = spec_of(pair, spec_config="draft-model")
    before = (free - target.weights) // target.cache(1, 1)
    after = (free - target.weights - draft.weights) // (target.cache(1, 1) + draft.cache(1, 1))
    taken = f"{gigabytes(draft.weights)} and {draft.cache(1, 1) / 1000:.1f} kB a token"
    lost = f"room for {after:,} tokens, not {before:,} (−{1 - after / before:.0%})"
    assert draft_memory(spec) == f"{taken}: {lost}"
    assert draft_memory(spec.with_(spec_config="ngram")) == ""


def test_memory_is_that_of_gpus_and_llama_cpp_divides_a_model_between_both(
    begun: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, spec = opened(pair, server_args="--dtype float32")
    monkeypatch.setattr(started, "free", lambda: [10, 20, 30])
    found = backend.demand([Held([spec], 9)])
    assert found is not None
    narrow, wide = (started.network_of(str(pair.target), None, one) for one in (False, True))
    assert found.parts[0].size == wide.weights == pytest.approx(2 * narrow.weights, rel=0.01)
    assert found.place == ("cuda:0, cuda:1", 50)
    backend.name = "llama-server"
    other = backend.demand([Held([spec], 9)])
    assert other is not None
    assert other.place == ("cuda:0, cuda:1, cpu", 60)


@pytest.mark.parametrize("words", [{"spec_config": "mtp"}, {"spec_config": '{"method": "suffix"}'}])
def test_a_draft_in_the_target_or_in_the_text_takes_nothing_that_is_known(
    begun: Path, pair: Pair, words: dict[str, str]
) -> None:
    assert arms.draft_of(spec_of(pair, **words)) is None
    assert draft_memory(spec_of(pair, **words)) == ""
    given = {"spec_config": json.dumps({"method": "eagle3", "model": str(begun / "head"), "num_speculative_tokens": 3})}
    assert arms.draft_of(spec_of(pair, **given)) == str(begun / "head")
    backend, spec = opened(pair, **given)
    assert backend.demand([Held([spec], 9)]) is None, "a head that is not here"


# --- how they fail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("no start", r"vllm-serve: it ended with exit code 1 \(ValueError: no such model\): its log is kept in /"),
        ("never ready", "vllm-serve: silent \\(not ready after 1 seconds\\)"),
        ("no draft", "it drafted nothing in its first answer, .*: check --speculative-config"),
        ("dies", r"vllm-serve: it ended with exit code 3 \(error: out of luck\)"),
        ("hangs", r"vllm-serve: silent \(.*silent for 0\.5 seconds"),
    ],
)
def test_what_goes_wrong_is_one_line(
    begun: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch, fault: str, line: str
) -> None:
    backend, spec = opened(pair, fault)
    backend.patience = 1.0 if fault == "never ready" else 60.0

    def decode() -> None:
        run = backend.prepare(spec, 4)
        monkeypatch.setattr(client, "STALL", 0.5)
        monkeypatch.setattr(client, "PAGE_SECONDS", 0.5)
        run([[1, 2]], [0])

    with pytest.raises(UnusableModelError, match=line):
        decode()
    assert gone(begun)
    assert backend.running == {}


def test_a_baseline_must_not_draft_and_a_server_that_refuses_a_request_goes_on(begun: Path, pair: Pair) -> None:
    backend, spec = opened(pair, "baseline drafts")
    with pytest.raises(UnusableModelError, match="the server without a draft drafts as well"):
        backend.prepare(spec.baseline, 4)
    backend, spec = opened(pair, "refuses")
    before, decode = len(engines(begun)), backend.prepare(spec, 4)
    for _ in range(2):
        with pytest.raises(ServerError, match=r"400 .*min_p is not supported"):
            decode([[1, 2]], [0])
    assert len(engines(begun)) == before + 1
    backend.unload()


KILLED = """
import sys
from specbench.backends.choose import backend_for
from specbench.spec import RunSpec
spec = RunSpec.model_validate_json(sys.argv[1])
backend = backend_for([spec])
for one in (spec.baseline, spec):
    backend.prepare(one, 4)
print("busy", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("fault", ["deaf", "none"])
def test_no_process_outlives_a_killed_specbench(begun: Path, pair: Pair, fault: str) -> None:
    spec = spec_of(pair, server_args=f"--fault {fault}").model_dump_json()
    with subprocess.Popen([sys.executable, "-c", KILLED, spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          cwd=REPOSITORY) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == b"busy\n"
        assert len(left(begun)) == 4
        running.kill()
    assert gone(begun)


def test_an_interrupt_ends_them(begun: Path, pair: Pair, tmp_path: Path) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    options = {"--backend": "vllm-serve", "--target": pair.target, "--draft": pair.draft, "--dataset": data,
               "--max-new-tokens": NEW, "--k": K, "--server-args": "--fault hangs", "-o": tmp_path / "out"}  # fmt: skip
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-c", MAIN, "run", *words]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, start_new_session=True) as running:
        while len(engines(begun)) < 1:
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert gone(begun)


# --- what they are started with ---------------------------------------------------------------------------------------


def words_of(backend: str, **more: object) -> tuple[list[str], list[str]]:
    """The words of both arms, and those of speculation."""
    spec = RunSpec.model_validate({"backend": backend, "target": "t", "draft": "d", "k": 2, **more})
    assert arms.speculative(spec.baseline, "d") == []
    assert arms.common(spec) == arms.common(spec.baseline)
    return arms.common(spec), arms.speculative(spec, "d")


CHAIN = "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
RECORD = "--per-request-spec-decode-metrics"


@pytest.mark.parametrize(
    ("backend", "given", "common", "speculative"),
    [
        ("sglang", {"server_args": "--tp 2 --enable-mixed-chunk"}, "--enable-metrics --max-running-requests 48 --tp 2",
         f"--speculative-algorithm STANDALONE --speculative-draft-model-path d {CHAIN}"),
        ("sglang", {"server_args": "--max-running-requests=9", "spec_config": "mtp"},
         "--enable-metrics --max-running-requests=9", f"--speculative-algorithm EAGLE {CHAIN}"),
        ("llama-server", {"method": "prompt-lookup"}, "--metrics --no-webui --kv-unified",
         "--spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 2"),
        ("llama-server", {"spec_config": "eagle3", "spec_args": "--spec-draft-p-min 0.5"},
         "--metrics --no-webui --kv-unified",
         "--spec-type draft-eagle3 -md d --spec-draft-n-max 2 --spec-draft-p-min 0.5"),
        ("vllm-serve", {"spec_args": "-sc={} " + RECORD + "=summary"}, "", "-sc={} " + RECORD + "=summary"),
        ("vllm-serve", {"spec_config": '{"a": 1}'}, "", f"""--speculative-config '{{"a": 1}}' {RECORD} detailed"""),
        ("vllm-serve", {"spec_config": "pard"}, "", "--speculative-config '" + json.dumps(
            {"method": "draft_model", "model": "d", "parallel_drafting": True, "num_speculative_tokens": 2}
        ) + f"' {RECORD} detailed"),
    ],
)  # fmt: skip
def test_the_words_of_an_arm(backend: str, given: dict[str, object], common: str, speculative: str) -> None:
    assert words_of(backend, **given) == (shlex.split(common), shlex.split(speculative))


@pytest.mark.parametrize("backend", arms.ENGINES)
def test_every_named_arm_has_its_k_and_its_draft(backend: str) -> None:
    for name, arm in arms.ENGINES[backend].named.items():
        _, words = words_of(backend, spec_config=name)
        passed = RunSpec(backend=backend, k=9, spec_args=shlex.join(words))
        assert arms.expected_k(passed) == 2, name
        needs = arms.DRAFT in (arm.split() if isinstance(arm, str) else arm.values())
        assert needs == ("d" in words or '"model": "d"' in " ".join(words))


@pytest.mark.parametrize(
    ("backend", "words", "found"),
    [
        ("vllm-serve", {"spec_config": '{"method": "suffix"}'}, 24),
        ("vllm-serve", {"spec_config": '{"method": "dspark"}'}, None),
        ("llama-server", {"spec_args": "--spec-draft-n-max 3 --spec-ngram-mod-n-max=8"}, 8),
        ("llama-server", {"spec_args": "--spec-default"}, None),
    ],
)  # fmt: skip
def test_k_comes_from_the_words(backend: str, words: dict[str, Any], found: int | None) -> None:
    assert arms.expected_k(RunSpec(backend=backend, **words)) == found
    (cell,) = grid.cells({"backend": backend, **words})
    assert cell.k == (found or RunSpec().k)
    if found:
        with pytest.raises(UsageError, match=f"draft {found} tokens: leave --k out"):
            grid.cells({"backend": backend, "k": 2, **words})


def test_words_with_their_own_k_are_in_a_list_of_arms_with_several_k() -> None:
    policy = '{"method": "ngram", "num_speculative_tokens": 8, "num_speculative_tokens_per_batch_size": [[1, 8, 4]]}'
    found = grid.cells({"backend": "vllm-serve", "spec_config": ["ngram", policy], "k": [2, 4]})
    assert [(one.spec_config, one.k) for one in found] == [("ngram", 2), ("ngram", 4), (policy, 8)]


@pytest.mark.parametrize(
    ("backend", "words", "variable", "found"),
    [
        ("vllm-serve", {"spec_config": "fly"}, "", "rejection_sample_method fly"),
        ("vllm-serve", {"spec_config": '{"rejection_sample_method": "block"}'}, "", ""),
        ("sglang", {"spec_args": "--speculative-accept-threshold-acc 0.9"}, "", "--speculative-accept-threshold-acc"),
        ("sglang", {"spec_args": "--speculative-accept-threshold-acc=1.0"}, "", ""),
        ("sglang", {"spec_config": "ngram"}, "SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_LEN"),
        ("llama-server", {"spec_args": "--spec-synth-len=3"}, "", "--spec-synth-len"),
    ],
)
def test_lossy_arms_are_recognised(
    monkeypatch: pytest.MonkeyPatch, backend: str, words: dict[str, Any], variable: str, found: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, "2")
    spec = RunSpec(backend=backend, draft="d", temperature=1.0, **words)
    assert arms.lossy(spec) == found
    assert losslessness_of(spec, {}, [], None).verdict == ("lossy" if found else "not compared")
    assert arms.lossy(spec.baseline) == ""


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"spec_config": "fly"}, "an unknown version of vllm has no fly, which the arm fly needs"),
        ({"spec_config": "eagle4"}, r"--spec-config eagle4 names no arm \(did you mean eagle or eagle3\?\)"),
        ({"method": "tree-top"}, "--method tree-top names no arm: use --method chain or prompt-lookup or suffix, or"),
        ({"draft": None}, "draft-model drafts with a model: name it with --draft"),
        ({"server_args": "--speculative-config={}"}, "move what is of speculation to --spec-args"),
        ({"spec_config": "fly", "spec_args": "--a b"}, "has no fly"),
        ({"spec_args": "--speculative-config {"}, "is not a JSON object"),
        ({"backend": "llama-server"}, "is not a GGUF file"),
        ({"backend": "sglang", "spec_config": '{"a": 1}'}, "sglang takes no JSON"),
        ({"server_args": "--a '"}, "No closing quotation"),
        ({"url": "http://a"}, "starts its own servers"),
        ({"dtype": "float32"}, "takes it as --server-args"),
        ({"schedule": "auto"}, "--schedule is for the server to decide"),
        ({"arrivals": 1.0}, "--batch 1 allows one in flight"),
        ({"backend": None, "server_args": "--a"}, "--server-args: requests need a server, and --backend"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_is_one_line(begun: Path, pair: Pair, given: dict[str, object], line: str) -> None:
    config = begun.parent / "lib" / "python3" / "site-packages" / "vllm" / "config" / "speculative.py"
    config.parent.mkdir(parents=True)
    config.write_text('Literal["draft_model", "mtp"]  # butterfly')
    with pytest.raises(SpecbenchError, match=line):
        backend_for([spec_of(pair, **given)])


def test_the_words_of_a_file_must_be_typed(command: Command, begun: Path, pair: Pair) -> None:
    folder = begun.parent
    config = {"method": "custom_class", "model": "evil.Proposer", "num_speculative_tokens": 3}
    content = {"backend": "vllm-serve", "target": str(pair.target), "draft": str(pair.draft), "dataset": "code"}
    (folder / "mine.yaml").write_text(json.dumps({**content, "spec_config": config}))
    command("check", "--config", "mine.yaml").refused(
        "mine.yaml starts servers with", "then give the same --spec-config on the command line"
    )
    assert command("check", "--config", "mine.yaml", "--spec-config", json.dumps(config)).code == 0
    (folder / "named.yaml").write_text(json.dumps({**content, "spec_config": "ngram"}))
    assert command("check", "--config", "named.yaml").code == 0


def test_a_method_of_the_baseline_is_no_arm() -> None:
    spec = RunSpec(backend="vllm-serve", method=BASELINE, k=0)
    assert arms.needed(spec) == arms.speculative(spec, None) == []
