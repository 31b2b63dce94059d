"""The chat of a tokenizer: transformers' own tokens, no second BOS, the same on every day, errors in one line."""

import os
import signal
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specbench.errors import UsageError
from specbench.models.checkpoints import tokenizers
from specbench.models.checkpoints.tokenizers import DATE, TokenizerChat, runs_on

HELLO = [{"role": "user", "content": "hello you"}]
TEMPLATE = (
    "{{ bos_token }} {% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}go{% endif %}"
)


def tokenizer(template: str | dict[str, str] | None = TEMPLATE, *words: str) -> PreTrainedTokenizerFast:
    """Words, and a BOS before every text that is encoded as it stands."""
    names = ["<s>", "</s>", "?", "hello", "you", "go", "on", *words]
    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="?")
    made.chat_template = template
    return made


def test_a_template_that_writes_a_bos_gets_no_second_one() -> None:
    found = tokenizer()
    assert found("hello").input_ids == [0, 3], "what a plain text gets"
    assert TokenizerChat(found).ids(TEMPLATE, HELLO, {}) == [0, 3, 4, 5]
    assert TokenizerChat(found).ids(TEMPLATE.removeprefix("{{ bos_token }} "), HELLO, {}) == [3, 4, 5]


def test_an_answer_is_text_without_special_tokens() -> None:
    assert TokenizerChat(tokenizer()).text([3, 4, 1]) == "hello you"


@pytest.mark.parametrize(
    ("template", "own"),
    [(TEMPLATE, TEMPLATE), (None, None), ({"rag": "x"}, None), ({"default": "y", "rag": "x"}, "y")],
)
def test_a_tokenizer_has_a_template_or_none(template: str | dict[str, str] | None, own: str | None) -> None:
    assert TokenizerChat(tokenizer(template)).own == own


def test_switches_reach_the_template() -> None:
    template = "{% if enable_thinking %}on{% else %}go{% endif %}"
    chat = TokenizerChat(tokenizer())
    assert [chat.ids(template, HELLO, {"enable_thinking": one}) for one in (True, False)] == [[6], [5]]


def test_the_date_of_a_template_is_the_same_on_every_day() -> None:
    day, month, year = DATE.split()
    chat = TokenizerChat(tokenizer(None, day, month, year))
    assert chat.ids('\n{{ strftime_now("%d %b %Y") }}', HELLO, {}) == [7, 8, 9]
    assert (
        chat.ids('{% if strftime_now is defined %}{% set d = strftime_now("%B") %}{{ d }}{% endif %} go', HELLO, {})[-1]
        == 5
    )


@pytest.mark.parametrize(
    ("template", "line"),
    [("{{ raise_exception('System role not supported') }}", "System role not supported"), ("{% if %}", "Expected"),
     ("{{ messages[3].content }}", "list object has no element 3"), ("{% for i in range(10**9) %}{% endfor %}", "")],
)  # fmt: skip
def test_a_template_that_fails_is_one_line(template: str, line: str) -> None:
    with pytest.raises(UsageError, match=r"^the chat template does not render these messages \(") as caught:
        TokenizerChat(tokenizer()).ids(template, HELLO, {})
    assert line in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("template", "line"),
    [("{{ 'a' * 3000000000 }}", "it takes more than 512 MiB of memory"),
     ("{{ '%1000000000d' % 5 }}", "it takes more than 512 MiB of memory"),
     ("{{ 'a' * 300000 }}", "it writes 300,000 letters, where 66,"),
     ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 0.5 seconds"),
     ("{{ 1.5|round(999999999, 'ceil') }}", "more than 0.5 seconds")],
)  # fmt: skip
def test_a_template_without_an_end_is_one_line(template: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "SERVE", tokenizers.SERVE.replace("; t.serve", "; t.SECONDS = 0.5; t.serve"))
    monkeypatch.setattr(tokenizers, "SECONDS", 0.5)
    monkeypatch.setattr(tokenizers, "_renderer", cache(tokenizers._renderer.__wrapped__))
    with pytest.raises(UsageError, match=r"^the chat template does not render these messages \(it ") as caught:
        TokenizerChat(tokenizer()).ids(template, HELLO, {})
    assert line in str(caught.value)
    assert TokenizerChat(tokenizer()).ids("go", HELLO, {}) == [5], "the next one is rendered"


def test_an_interrupted_template_answers_no_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    found = TokenizerChat(tokenizer())
    assert found.ids("go", HELLO, {}) == [5]
    child = tokenizers._renderer()
    with monkeypatch.context() as patch:
        patch.setattr(child.stdin, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.ids("on", HELLO, {})
    assert child.wait(5) == -signal.SIGKILL
    assert found.ids("go", HELLO, {}) == [5]


def interrupted() -> str:
    raise KeyboardInterrupt


def test_a_text_that_no_tokenizer_takes_is_one_line() -> None:
    with pytest.raises(UsageError, match="does not render these messages"):
        TokenizerChat(tokenizer()).ids(TEMPLATE, [{"role": "user", "content": "\ud800"}], {})


def test_an_end_that_the_generation_config_does_not_know_is_said() -> None:
    (line,) = runs_on(tokenizer(), [7])
    assert "ends a turn with '</s>' (1), which the generation config does not name among [7]" in line
    assert runs_on(tokenizer(), [7, 1]) == []
    assert runs_on(tokenizer(None), [7]) == []


# --- the real thing ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_chat_has_the_tokens_of_transformers() -> None:
    if "SPECBENCH_SMOLLM2" not in os.environ:
        pytest.skip("SPECBENCH_SMOLLM2 names no folder with smollm2-135m")
    found = AutoTokenizer.from_pretrained(Path(os.environ["SPECBENCH_SMOLLM2"], "smollm2-135m"))
    chat = TokenizerChat(found)
    told = [*HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    ids = chat.ids(str(chat.own), told, {})
    assert ids == found.apply_chat_template(told, add_generation_prompt=True, return_dict=False)
    assert found.decode(ids).endswith("<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
    assert runs_on(found, [2]) == []
