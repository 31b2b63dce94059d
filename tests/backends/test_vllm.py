"""The backend `vllm` over a stand-in for vLLM: what it is asked, what is made of its answers, and what is refused."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.backends import choose
from specbench.backends.base import Held
from specbench.backends.engines import install, vllm
from specbench.backends.engines.external import RUNTIME, Apart, opened
from specbench.backends.engines.vllm import Vllm, refuse_elsewhere, variables
from specbench.errors import UnusableModelError, UsageError
from specbench.spec import BASELINE, RunSpec
from tests.support import fake_vllm
from tests.support.frontdoor import Command
from tests.support.signals import left_by_a_killed
from tests.support.tinypair import EOS, Pair, prompts

STAND_IN = Vllm(Path(sys.executable), Path(fake_vllm.__file__), (60.0, 60.0))
NEW, K = 8, 3


def spec_of(pair: Pair, **more: object) -> RunSpec:
    given = {"target": str(pair.target), "draft": str(pair.draft), "max_new_tokens": NEW, "k": K, "dtype": "float32"}
    return RunSpec.model_validate({**given, "backend": "vllm", **more})


def arms_of(pair: Pair, **more: object) -> tuple[Apart, RunSpec]:
    spec = spec_of(pair, **more)
    return opened(STAND_IN, [spec]), spec


def started(pair: Pair, **more: object) -> dict[str, object]:
    backend, spec = arms_of(pair, **more)
    return dict(backend.engine.start(spec, backend.inner.pair, 20)["llm"])


def named(pair: Pair, folder: Path) -> Pair:
    """The pair with a target whose folder has another name."""
    shutil.copytree(pair.target, folder)
    return replace(pair, target=folder)


# --- what is made of its answers --------------------------------------------------------------------------------------


def test_both_arms_decode_in_processes_of_their_own(pair: Pair) -> None:
    backend, spec = arms_of(pair, ignore_eos=True)
    backend.load(4)
    try:
        plain, drafted = (backend.prepare(one, 4)([[1, 2, 3], [7]], [0, 1]) for one in (spec.baseline, spec))
        again = backend.prepare(spec, 4)([[1, 2, 3]], [5])
        assert len(backend._served) == 2
    finally:
        backend.unload()
    assert [trace.tokens for trace in plain] == [(4, 5, 6, 7, 8, 9, 10, 11), (8, 9, 10, 11, 12, 13, 14, 15)]
    assert [trace.tokens for trace in drafted] == [trace.tokens for trace in plain]
    assert again[0].rounds == drafted[0].rounds
    counts = [(r.drafted, r.accepted, r.emitted) for r in drafted[0].rounds]
    assert counts == [(0, 0, 1), (3, 2, 3), (3, 0, 1), (3, 1, 2), (3, 0, 1)]
    assert all(r.drafted == 0 for r in plain[0].rounds)
    assert all(trace.seconds > 0 for trace in (*plain, *drafted))
    assert backend._served == {}


def test_a_sequence_ends_where_the_target_says_and_what_was_prepared_for_others_is_ended(pair: Pair) -> None:
    backend, spec = arms_of(pair)
    try:
        backend.prepare(spec.baseline, 4)
        (trace,) = backend.prepare(spec, 4)([[EOS - 3]], [0])
        (process,) = [one.process for key, one in backend._served.items() if "speculative" in key]
        backend.keep([spec.baseline])
        assert (len(backend._served), process.returncode) == (1, 0)
    finally:
        backend.unload()
    assert trace.tokens == (EOS - 2, EOS - 1, EOS)


def test_every_process_has_weights_of_its_own_and_diverging_output_is_judged_by_networks_of_the_pair(
    pair: Pair,
) -> None:
    backend, spec = arms_of(pair)
    ours, found = (one.demand([Held([spec], 4)]) for one in (backend.inner, backend))
    assert ours is not None
    assert found is not None
    weights = [sum(part.size for part in one.parts if part.kind == "weights") for one in (ours, found)]
    assert weights[1] == 2 * weights[0]
    assert sum(part.size for part in found.parts) > 2 * RUNTIME
    assert not backend.inner.modules
    assert backend.scores([1, 2, 3, 4], 2, 1).shape == (2, 64)
    assert backend.judge() is backend.inner
    backend.unload()


@pytest.mark.slow
def test_verification_scores_what_another_engine_emits(
    pair: Pair, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in counts upwards whatever the target says."""
    monkeypatch.setitem(choose.BACKENDS, "vllm", lambda specs: opened(STAND_IN, specs))
    few = ("--limit", 1, "--max-new-tokens", 4, "--tokens", 100, "--k", K)
    data = ("--dataset", prompts(tmp_path / "words.jsonl", 4))
    found = command("verify", pair.target, pair.draft, "--backend", "vllm", "--method", "chain", *few, *data)
    assert found.code == 5, found.err
    assert "checks failed" in found.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("raises", "vllm: RuntimeError: no kernel for this machine"),
        ("dies", r"vllm: it ended with exit code 3 \(Error: the engine core died\)"),
        ("hangs", "vllm: silent for 0\\.1 seconds, so it was terminated"),
    ],
)
def test_what_goes_wrong_is_one_line(pair: Pair, tmp_path: Path, fault: str, line: str) -> None:
    spec = spec_of(named(pair, tmp_path / fault))
    backend = opened(replace(STAND_IN, patience=(60.0, 0.1)), [spec])
    try:
        with pytest.raises(UnusableModelError, match=line):
            backend.prepare(spec, 4)([[1]], [0])
    finally:
        backend.unload()


# --- what it is asked -------------------------------------------------------------------------------------------------


def test_it_is_started_with_the_pair_and_a_small_cache(pair: Pair) -> None:
    found = started(pair, batch=4)
    sizes = {"max_num_seqs": 4, "max_model_len": 20, "kv_cache_memory_bytes": 256 << 20}
    assert {**found, "model": "target", "dtype": "float32", **sizes} == found
    assert found["speculative_config"] == {"num_speculative_tokens": K, "method": "draft_model", "model": "draft"}
    assert (found["enforce_eager"], started(pair, tier="compile")["enforce_eager"]) == (True, False)
    assert "speculative_config" not in started(pair, method=BASELINE)
    files = vllm.located(found, arms_of(pair)[0].inner.pair)
    assert (files["model"], files["speculative_config"]["model"]) == (str(pair.target), str(pair.draft))


@pytest.mark.parametrize(
    ("given", "config"),
    [
        ({"method": "prompt-lookup"}, {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}),
        ({"method": "suffix"}, {"method": "suffix", "suffix_decoding_max_cached_requests": 0}),
        ({"temperature": 1.0}, {"method": "draft_model", "draft_sample_method": "probabilistic"}),
    ],
)
def test_methods_are_its_own_by_other_names(pair: Pair, given: dict[str, object], config: dict[str, object]) -> None:
    found = started(pair, **given)["speculative_config"]
    assert isinstance(found, dict)
    assert {**found, **config, "num_speculative_tokens": K} == found


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"method": "tree-top"}, "--method tree-top is .* over .*: use --backend native"),
        ({"method": "token-match"}, "--method token-match is TokenMatch over ModelDrafter"),
        (
            {"method": "block"},
            "--method block: on a CPU it accepts block verification, but still judges token by token",
        ),
        ({"method": "early-exit"}, "is layers of another model"),
        ({"schedule": "heuristic"}, "--schedule: K is the same in every round"),
        ({"temperature": 1.0, "min_p": 0.1}, "--min-p: it ignores such a limit"),
        ({"tier": "graph"}, "--tier: use eager, or compile"),
        ({"engine_option": "vllm.trust_remote_code=true"}, "--trust-remote-code alone decides whether code"),
        ({"target": "demo", "draft": "demo-draft@llama-68m"}, "write it once with `specbench models grow`"),
    ],
)
def test_what_it_cannot_do_is_one_line(pair: Pair, given: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        started(pair, **given)


def test_options_of_the_engine_go_to_it_as_they_are(pair: Pair) -> None:
    found = started(pair, engine_option=["vllm.tensor_parallel_size=2", "vllm.kv_cache_dtype=fp8"])
    assert (found["tensor_parallel_size"], found["kv_cache_dtype"]) == (2, "fp8")
    alone = "VLLM_ENABLE_V1_MULTIPROCESSING"
    assert (alone in variables(Path("p"), found), variables(Path("p"), started(pair))[alone]) == (False, "0")


def test_a_build_for_another_device_is_refused_and_a_known_fault_stands_in_the_notes_of_the_row(pair: Pair) -> None:
    with pytest.raises(UnusableModelError, match="this build computes on cpu, and the pair is on cuda"):
        refuse_elsewhere({"device": "cpu"}, {"device": "cuda"})
    (greedy, plain), (drawn, spec) = arms_of(pair), arms_of(pair, temperature=1.0)
    assert vllm.BUG in drawn.notes(spec)
    assert vllm.BUG not in [*drawn.notes(spec.baseline), *greedy.notes(plain)]


def test_its_processes_compute_with_as_many_threads(tmp_path: Path) -> None:
    import torch

    found = variables(tmp_path / "bin" / "python", {})
    assert found["OMP_NUM_THREADS"] == str(torch.get_num_threads())
    assert "LD_PRELOAD" not in found
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert variables(tmp_path / "bin" / "python", {})["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")


def test_without_an_environment_a_line_says_how_to_get_one(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(install.VLLM_PYTHON, raising=False)
    monkeypatch.setenv("SPECBENCH_ENGINES", str(tmp_path))
    with pytest.raises(UnusableModelError, match="vLLM is not installed: run `specbench backend install vllm`"):
        choose.backend_for([spec_of(pair)])
    monkeypatch.setenv(install.VLLM_PYTHON, "/no/such/python")
    with pytest.raises(UnusableModelError, match=f"{install.VLLM_PYTHON}: there is no /no/such/python"):
        choose.backend_for([spec_of(pair)])


BUSY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-P", sys.argv[1]], stdin=subprocess.PIPE, start_new_session=True)
child.stdin.write(b'{"op": "open", "llm": {}}\\n')
child.stdin.flush()
time.sleep(60)
"""


def test_a_busy_engine_ends_with_the_process_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import time; print('busy', flush=True); time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert left_by_a_killed([sys.executable, "-c", BUSY, str(fake_vllm.CHILD)]) == ""
