"""Chat templates and conversations through the front door: a tiny instruct model, its rows, notes and refusals."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.chats import WORDS, give_template
from tests.support.frontdoor import SHORT, Command, Outcome
from tests.support.tinypair import Pair


@pytest.fixture(scope="module")
def instruct(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The tiny pair with a chat template in the target's tokenizer."""
    folder = tmp_path_factory.mktemp("instruct")
    found = Pair(folder / "target", folder / "draft")
    shutil.copytree(pair.target, found.target)
    shutil.copytree(pair.draft, found.draft)
    give_template(found.target)
    return found


@pytest.fixture
def chat(command: Command, instruct: Pair, tmp_path: Path) -> Command:
    """`specbench run` of the instruct pair on three conversations."""
    rows = [("a", ["w1 w2", "w3", "w4"]), ("b", ["w5 w6 w7", "w8"]), ("c", ["w9"])]
    lines = [json.dumps({"question_id": name, "category": "math", "turns": turns}) + "\n" for name, turns in rows]
    (tmp_path / "talk.jsonl").write_text("".join(lines))
    few = ("--max-new-tokens", "4", "--warmup", "1", "--k", "2")

    def call(*arguments: object) -> Outcome:
        return command("run", *instruct.options, "--dataset", f"jsonl:{tmp_path / 'talk.jsonl'}", *few, *arguments)

    return call


def test_conversations_are_decoded_turn_by_turn_and_the_row_says_how(chat: Command) -> None:
    found = chat("--system", "w20").ok()
    (row,), samples = found.table(), found.table("samples.csv")
    assert (row["prompt_form"], row["chat_template_resolved"], row["system"]) == ("turns", "own", "w20")
    assert len(row["chat_template_sha256"]) == 64
    assert (row["lossless"], row["prompts"], row["draws"], row["turns"], row["turns_cut"]) == (
        "identical", "3", "3", "6", "0",
    )  # fmt: skip
    assert [(s["prompt"], s["conversation_turn"]) for s in samples] == [
        ("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2"), ("c", ""),
    ]  # fmt: skip
    lengths = [int(s["prompt_tokens"]) for s in samples]
    answered = int(samples[0]["baseline_tokens"])
    assert lengths[0] == 6, "w50 w20 w51 w1 w2 w52"
    assert lengths[0] < lengths[1] <= lengths[0] + answered + 3, "w51 w3 w52"
    rounds = pd.read_parquet(found.folder / "rounds.parquet")
    assert set(rounds["conversation_turn"].dropna()) == {1, 2, 3}
    assert "prompts in the target's chat template, prompt form turns" in found.out
    assert "6 turns of 3 conversations, each on the baseline's earlier answers" in found.out


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_sampled_run_that_was_cut_off_in_a_conversation_ends_as_it_would_have(
    chat: Command, command: Command
) -> None:
    whole = chat("--temperature", 1, "--ignore-eos")
    tokens = [(s.prompt, s.conversation, s.baseline.tokens, s.method.tokens) for s in whole.samples()]
    journal = whole.folder / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:3]))  # begun, and two turns
    (whole.folder / "results.csv").unlink()
    again = command("sweep", "--resume", whole.folder).ok()
    assert [(s.prompt, s.conversation, s.baseline.tokens, s.method.tokens) for s in again.samples()] == tokens
    assert [len(t) for *_, t in tokens] == [4] * 6
    for reader in ("verdict", "report"):
        assert command(reader, whole.folder).code == 0


def test_batches_decode_the_same_tokens(chat: Command) -> None:
    found = chat()
    alone = {(s.prompt, s.conversation): s.method.tokens for s in found.samples()}
    shutil.rmtree(found.cwd / "results")
    together = chat("--batch", 2)
    assert {(s.prompt, s.conversation): s.method.tokens for s in together.samples()} == alone
    assert {s["cluster"] for s in together.table("samples.csv")} == {"batch 0"}


def test_a_conversation_that_outgrows_the_context_ends(chat: Command) -> None:
    found = chat("--max-new-tokens", 16, "--ignore-eos")
    (row,) = found.table()
    assert (row["status"], row["turns"], row["turns_cut"]) == ("ok", "5", "1")
    assert "; no context was left for 1 later turn" in found.out


def test_plain_text_for_an_instruct_model_is_said(chat: Command) -> None:
    found = chat("--chat-template", "none")
    (row,) = found.table()
    assert (row["prompt_form"], row["chat_template_resolved"], row["turns"]) == ("text", "not applied", "")
    assert row["rejected"] == "3 of the later turns (for want of a chat template)"
    assert "an instruct model has read plain text (prompt form text)" in found.out
    assert found.out.count("leave out --chat-template none") == 1


def test_with_and_without_template_are_two_questions_in_one_grid(
    command: Command, instruct: Pair, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"turns": ["w1 w2", "w3"]}\n')
    grid = {"target": str(instruct.target), "draft": str(instruct.draft), "dataset": f"jsonl:{tmp_path / 'p.jsonl'}"}
    grid |= {"chat_template": ["auto", "none"], "thinking": None, "max_new_tokens": 4, "warmup": 0, "k": [1, 2]}  # type: ignore[dict-item]
    (tmp_path / "grid.yaml").write_text(json.dumps(grid))
    found = command("sweep", tmp_path / "grid.yaml").ok()
    assert [row["chat_template_resolved"] for row in found.table()] == ["own", "own", "not applied", "not applied"]
    lines = " ".join(found.out.split())
    for words in ("in its chat template", "without its chat template"):
        assert f"UNCLEAR ({words}). With K = " in lines


def test_a_template_of_ones_own_makes_a_base_model_chat(command: Command, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(WORDS)
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1 w2"}\n')
    (tmp_path / "c.yaml").write_text("thinking: off\n")
    data = ("--dataset", f"jsonl:{tmp_path / 'p.jsonl'}")
    found = command("run", *pair.options, *data, *SHORT, "--chat-template", "mine.jinja", "--config", "c.yaml")
    (row,) = found.table()
    assert (row["chat_template_resolved"], row["prompt_form"], row["thinking"]) == ("mine.jinja", "text", "False")
    assert found.table("samples.csv")[0]["prompt_tokens"] == "5", "w51 w1 w2 w53 w52"
    assert "prompts in the chat template mine.jinja, prompt form text" in found.out


def test_a_trace_is_of_plain_text_or_of_a_message(command: Command, instruct: Pair) -> None:
    options = (*instruct.options, "--prompt", "w1 w2", "--max-new-tokens", 4, "--format", "json")
    plain, told = (json.loads(command("trace", *options, *more).out) for more in ((), ("--chat-template", "always")))
    assert plain["rounds"] != told["rounds"]


# --- the real thing ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_conversation_goes_as_transformers_would_lead_it(command: Command, tmp_path: Path) -> None:
    if "SPECBENCH_SMOLLM2" not in os.environ:
        pytest.skip("SPECBENCH_SMOLLM2 names no folder with smollm2-135m")
    folder = Path(os.environ["SPECBENCH_SMOLLM2"], "smollm2-135m")
    turns = ["Name three colours.", "Repeat your last answer backwards."]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"turns": turns}) + "\n")
    few = ("--max-new-tokens", 12, "--warmup", 0, "--k", 4, "--system", "Be brief.", "--dtype", "float32")
    found = command("run", "-t", folder, "--method", "prompt-lookup", "--dataset", "jsonl:talk.jsonl", *few).ok()
    assert found.table()[0]["lossless"] == "identical"
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
    )
    messages = [{"role": "system", "content": "Be brief."}]
    for turn, sample in zip(turns, found.samples(), strict=True):
        messages.append({"role": "user", "content": turn})
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        length = prompt["input_ids"].shape[1]
        (ids,) = model.generate(**prompt, max_new_tokens=12, do_sample=False).tolist()
        assert (sample.prompt_tokens, sample.baseline.tokens) == (length, tuple(ids[length:]))
        messages.append({"role": "assistant", "content": tokenizer.decode(ids[length:], skip_special_tokens=True)})
