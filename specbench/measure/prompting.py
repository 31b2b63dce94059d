"""The prompts of a cell, read by its settings and written by the tokenizer of its pair.

Knows specs, backends and prompts; must not know weights or how anything is decoded.
"""

from specbench.backends.base import Backend
from specbench.data.chats import ChatSettings, applied_to
from specbench.data.loading import load_prompts, written_in
from specbench.data.prompts import PromptSet
from specbench.errors import UsageError
from specbench.spec import RunSpec


def read_prompts(spec: RunSpec, backend: Backend, room: int) -> PromptSet:
    """The prompts of a cell that leave room for so many tokens in the context of its models."""
    longest = backend.context - room
    if longest < 1:
        raise UsageError(
            f"{spec.max_new_tokens} new tokens and a draft leave no room for a prompt: the context of these models is "
            f"{backend.context} tokens; lower --max-new-tokens"
        )
    return load_prompts(
        spec.dataset,
        backend.encode,
        limit=spec.limit,
        seed=spec.seed,
        longest=longest,
        column=spec.column,
        template=spec.template,
        context=spec.context,
        chat=chat_settings(spec, backend),
    )


def text_ids(text: str, spec: RunSpec, backend: Backend) -> list[int]:
    """The tokens of one text, which is plain unless the spec names a chat template for all."""
    chat = chat_settings(spec, backend)
    return written_in(applied_to("this command", chat, False), chat, backend.encode)([text])


def chat_settings(spec: RunSpec, backend: Backend) -> ChatSettings:
    """What a spec says of chats, for the tokenizer of its target."""
    return ChatSettings(backend.chat, spec.chat_template, spec.system, spec.thinking, spec.max_new_tokens)
