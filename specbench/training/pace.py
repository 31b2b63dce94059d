"""How fast a draft learns on this machine, and so how much of it in some hours.

Knows runs by their steps; must not know what is learned.
"""

import copy
import time
from dataclasses import dataclass, replace
from typing import Any

from specbench.training import processes
from specbench.training.cache import TokenCache
from specbench.training.distil import Lesson, Run, silent
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher


@dataclass(frozen=True)
class Pace:
    """How fast a draft learns on this machine: tokens per second, and seconds of an evaluation.

    again: tokens per second from the second time on that the text is learned, of which there is as much as `text` says:
    the teacher's states are kept then.
    """

    speed: float
    evaluation: float
    again: float
    text: int

    def tokens(self, seconds: float, evaluations: int) -> int:
        """How many tokens are learned in so many seconds, to two digits, at least one."""
        left = max(seconds - (evaluations + 1) * self.evaluation, 0.0)
        once = min(left, self.text / self.speed)
        learned = self.speed * once + self.again * (left - once)
        return processes.agreed(max(int(float(f"{learned:.1e}")), 1))


def pace(
    student: Any,
    teacher: Teacher,
    cache: TokenCache,
    recipe: Recipe,
    lesson: Lesson | None = None,
    least: float = 8.0,
) -> Pace:
    """Learn for `least` seconds with a copy of the student that is then forgotten.

    The teacher keeps nothing at first, whatever is on disk: an earlier run may have left the first states and no more.
    """
    run = Run(copy.deepcopy(student), replace(teacher, states=None), cache, recipe, None, silent, lesson=lesson)
    run.step()  # first calls allocate
    run.evaluate()
    began = time.monotonic()
    run.evaluate()
    evaluated = time.monotonic()
    first, speed = run.progress.step, run.speed(lambda steps: time.monotonic() - evaluated < least or not steps)
    again = speed
    if teacher.states is not None:
        run.teacher, steps = teacher, run.progress.step - first
        for _ in range(2):  # the first time keeps the states, or finds them
            run.progress.step = first
            again = run.speed(lambda done: done < steps)
    return Pace(speed, evaluated - began, again, int(cache.train.learned(recipe.prompts).sum()))
