"""Prompts in chat templates: when one is applied, in which form, what is refused, and how conversations go on."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.data.forms import HUMANEVAL, ChatSettings
from specbench.data.loading import SLACK
from specbench.data.prompts import Prompt, PromptSet, next_turn
from tests.support.chats import Spelled
from tests.support.datafiles import complaint, jsonl, load

CHAT = ChatSettings(Spelled(), answer=4)
BASE = ChatSettings(Spelled(own=None), answer=4)
TURNS = {"question_id": 81, "category": "writing", "turns": ["first", "second", "third"]}
PLAIN = {"prompt": "once upon"}


def said(prompt: Prompt) -> str:
    return "".join(map(chr, prompt.ids))


def loaded(path: Path, row: dict[str, object], chat: ChatSettings = CHAT, **options: object) -> PromptSet:
    return load(jsonl(path / "a.jsonl", row), chat=chat, **options)


# --- when, and in which form ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "form", "text"),
    [
        (TURNS, "turns", "own>[u]first[a]"),
        ({"prompt": ["one", "two"], "prompt_id": 1}, "turns", "own>[u]one[a]"),
        ({"turns": "only"}, "turns", "own>[u]only[a]"),
        ({"document": "A {document}.", "id": "1"}, "summarize-instruct-1", "own>[u]Summarize: A {document}.[a]"),
        ({"prompt": "def f():", "entry_point": "f"}, "humaneval-instruct-1",
         f"own>[u]{HUMANEVAL.text.format(prompt='def f():')}[a]"),
        (PLAIN, "text", None),
        ({"text": "once upon"}, "text", None),
    ],
)  # fmt: skip
def test_by_itself_the_template_is_for_instructions(
    tmp_path: Path, row: dict[str, object], form: str, text: str | None
) -> None:
    found = loaded(tmp_path, row)
    assert found.form == form
    assert said(found.prompts[0]) == (text or "once upon")
    assert found.row()["chat_template_resolved"] == ("own" if text else "not applied")


@pytest.mark.parametrize("row", [TURNS, PLAIN, {"document": "News."}, {"prompt": "def f():", "entry_point": "f"}])
def test_without_a_template_prompts_are_what_they_always_were(tmp_path: Path, row: dict[str, object]) -> None:
    plain = loaded(tmp_path, row, ChatSettings())
    assert loaded(tmp_path, row, BASE).prompts == plain.prompts
    assert loaded(tmp_path, row, replace(CHAT, template="none")).prompts == plain.prompts
    assert loaded(tmp_path, row, BASE).row()["chat_template_resolved"] == "none"
    assert all(not prompt.later for prompt in plain.prompts)


@pytest.mark.parametrize("name", ["code", "articles", "longdoc:40"])
def test_the_shipped_prompts_are_instructions_or_not(name: str) -> None:
    forms = {"code": "humaneval-instruct-1", "articles": "summarize-instruct-1"}
    found, plain = load(name, chat=CHAT, limit=2), load(name, limit=2)
    assert found.form == forms.get(name, "text")
    assert (found.prompts == plain.prompts) == (name not in forms)
    long = load("longdoc:60", chat=replace(CHAT, template="always"), limit=2)
    assert all(said(prompt).startswith("own>[u]") for prompt in long.prompts)
    assert all(40 < len(prompt.ids) <= 60 for prompt in long.prompts), "as long as asked with its template"


def test_the_users_own_words_and_template_hold(tmp_path: Path) -> None:
    found = loaded(tmp_path, {"document": "News."}, template="In one line: {document}")
    assert (said(found.prompts[0]), found.form) == ("own>[u]In one line: News.[a]", "template")
    (tmp_path / "mine.jinja").write_text("mine>")
    given = replace(BASE, template=str(tmp_path / "mine.jinja"))
    mine = loaded(tmp_path, PLAIN, given)
    assert said(mine.prompts[0]) == "mine>[u]once upon[a]"
    assert mine.row()["chat_template_resolved"] == given.template
    assert mine.row()["chat_template_sha256"] != found.row()["chat_template_sha256"]
    assert said(loaded(tmp_path, PLAIN, replace(CHAT, template="always")).prompts[0]) == "own>[u]once upon[a]"
    chat = ChatSettings(Spelled("think>"), None, "be brief", False)
    assert said(loaded(tmp_path, TURNS, chat).prompts[0]) == "think>[s]be brief[u]first[a]-"
    assert said(loaded(tmp_path, TURNS, replace(chat, thinking=True)).prompts[0]) == "think>[s]be brief[u]first[a]"
    assert said(loaded(tmp_path, TURNS, replace(chat, system="")).prompts[0]) == "think>[s][u]first[a]-"


REFUSED = {
    "no template": (replace(BASE, template="always"), "the target's tokenizer has no chat template; give a file"),
    "no file": (
        replace(CHAT, template="/nowhere"),
        "template /nowhere (No such file or directory): --chat-template takes auto",
    ),
    "no chat": (ChatSettings(template=__file__), "this backend takes plain text only"),
    "no place": (replace(CHAT, chat=Spelled("nosystem>"), system="x"), "no place for a system message"),
    "no switch": (
        replace(CHAT, thinking=False),
        "--chat-template-kwargs thinking: the chat template has no such switch",
    ),
    "plain": (replace(CHAT, template="none", system="x"), "--system needs a chat template, and the prompts of jsonl:"),
    "base": (replace(BASE, thinking=True), "--chat-template-kwargs needs a chat template, and the prompts of jsonl:"),
    "refused": (replace(CHAT, chat=Spelled(refuses="first")), "refused"),
}


@pytest.mark.parametrize(("chat", "line"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_applied_is_refused(tmp_path: Path, chat: ChatSettings, line: str) -> None:
    assert line in complaint(jsonl(tmp_path / "a.jsonl", TURNS), chat=chat)


def test_plain_text_says_how_it_gets_a_system_message_and_a_file_that_is_no_template_is_refused(tmp_path: Path) -> None:
    said = complaint(jsonl(tmp_path / "a.jsonl", PLAIN), chat=replace(CHAT, system="x"))
    assert "plain text to be continued: add --chat-template always" in said
    (tmp_path / "large").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "latin").write_bytes(b"\xff")
    assert "it is a pipe or a device" in complaint("code", chat=replace(CHAT, template="/dev/zero"))
    data = jsonl(tmp_path / "a.jsonl", PLAIN)
    assert "it is larger than 1 MiB" in complaint(data, chat=replace(CHAT, template=str(tmp_path / "large")))
    assert "cannot read the chat template" in complaint(data, chat=replace(CHAT, template=str(tmp_path / "latin")))


# --- later turns ------------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_with_its_answers(tmp_path: Path) -> None:
    found = loaded(tmp_path, TURNS, replace(CHAT, system="s"))
    first = found.prompts[0]
    assert (first.turn, first.turns, found.turns, found.rejected) == (1, 3, 3, {})
    second = next_turn(first, [97, 98], found, Spelled())
    assert second is not None
    assert said(second) == "own>[s]s[u]first[a]ab[u]second[a]"
    third = next_turn(second, [99], found, Spelled())
    assert third is not None
    assert said(third) == "own>[s]s[u]first[a]ab[u]second[a]c[u]third[a]"
    assert [p.turn for p in (second, third)] == [2, 3]
    assert {p.id for p in (first, second, third)} == {"81"}
    assert len({p.draw for p in (first, second, third)}) == 3
    assert next_turn(third, [99], found, Spelled()) is None


def test_room_is_kept_for_the_answers_and_a_conversation_ends_where_it_runs_out(tmp_path: Path) -> None:
    found = loaded(tmp_path, TURNS)
    assert found.longest == len("own>[u]first[a]OK.[u]second[a]OK.[u]third[a]") + 2 * (4 + SLACK)
    short = loaded(tmp_path, TURNS, longest=30)
    assert short.longest == 30
    assert next_turn(short.prompts[0], [97] * 5, short, Spelled()) is None
    assert next_turn(short.prompts[0], [97] * 2, short, Spelled()) is not None
    assert next_turn(found.prompts[0], [97], found, Spelled(refuses="second")) is None
    found = loaded(tmp_path, {"turns": ["one", "two", None, "four"]})
    assert (found.prompts[0].text, found.prompts[0].later) == ("one", ("two",))
    far = loaded(tmp_path, {"turns": ["one", "x" * 100_000, "three"]}, longest=100)
    assert far.prompts[0].later == (), "told by its characters, not by tokenizing it"


ASKED = [("user", "first"), ("assistant", "an answer"), ("user", "second")]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": role, "content": text} for role, text in ASKED]},
        {"conversations": [{"from": role.replace("user", "human"), "value": text} for role, text in ASKED]},
    ],
    ids=lambda row: next(iter(row)),
)
def test_of_messages_with_roles_the_users_are_the_turns(tmp_path: Path, row: dict[str, object]) -> None:
    (prompt,) = loaded(tmp_path, row).prompts
    assert (prompt.text, prompt.later) == ("first", ("second",))


def test_system_messages_and_later_turns_without_a_template_are_counted(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "first"}
    rows = ([system, user], [system], [{"content": "who?"}])
    found = load(jsonl(tmp_path / "a.jsonl", *({"messages": row} for row in rows)), chat=CHAT)
    assert [prompt.text for prompt in found.prompts] == ["first"]
    assert found.row()["rejected"] == "1 system messages (which --system gives to all prompts), 2 empty"
    found = loaded(tmp_path, TURNS, BASE)
    assert found.row()["rejected"] == "2 of the later turns (for want of a chat template)"
    assert found.turns == len(found.prompts) == 1


def test_the_hash_knows_later_turns_and_what_they_are_written_in(tmp_path: Path) -> None:
    one = loaded(tmp_path, TURNS)
    other = loaded(tmp_path, {**TURNS, "turns": ["first", "second", "3rd"]})
    think = loaded(tmp_path, TURNS, replace(CHAT, chat=Spelled("own>"), thinking=None))
    assert one.sha256 != other.sha256
    assert one.sha256 == think.sha256 == pickle.loads(pickle.dumps(one)).sha256
    assert [p.ids for p in one.prompts] == [p.ids for p in other.prompts]
