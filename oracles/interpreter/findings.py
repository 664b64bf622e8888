"""What a guard of the interpreter says when it sees a fault: an exception that ends the run before harm is done."""

from __future__ import annotations


class GuardError(Exception):
    """A fault that a guard saw. `guard`: which one ("bounds", "overflow", "races"), so that shrinking stays with it."""

    def __init__(self, guard: str, message: str) -> None:
        super().__init__(f"{guard}: {message}")
        self.guard = guard


def guard_error(error: BaseException | None) -> GuardError | None:
    """The guard's finding among the causes of an exception; Triton wraps what a kernel raises, once a call."""
    while error is not None and not isinstance(error, GuardError):
        error = error.__cause__
    return error
