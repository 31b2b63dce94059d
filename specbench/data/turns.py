"""The later turns of a conversation: each is a prompt of its own, on all that was said and answered before it.

Knows prompts and the chat of a tokenizer by its protocol; must not know who gave the answers.
"""

from collections.abc import Sequence
from dataclasses import replace

from specbench.chat import Chat
from specbench.data.prompts import Prompt, PromptSet
from specbench.errors import UsageError


def next_turn(prompt: Prompt, answer: Sequence[int], prompts: PromptSet, chat: Chat) -> Prompt | None:
    """The next turn's prompt after an answer, as a server would write it: the whole conversation anew, as text.

    None where there is no later turn, where the conversation has outgrown the longest prompt of its set, or where the
    template refuses it.
    """
    if not prompt.later or prompts.applied is None:
        return None
    text, *later = prompt.later
    before = (*prompt.before, prompt.text, chat.text(answer))
    try:
        ids = tuple(prompts.applied.ids(chat, (*before, text)))
    except UsageError:
        return None
    found = replace(prompt, text=text, ids=ids, later=tuple(later), before=before)
    return found if len(ids) <= prompts.longest else None
