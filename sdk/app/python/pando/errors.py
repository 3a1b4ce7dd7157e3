"""What Pando may answer instead of doing it. The text of an error is the reason and what to do about it."""

from __future__ import annotations

from typing import Any


class PandoError(Exception):
    """Something that Pando did not do. The subclasses say of which kind it is."""

    def __init__(self, reason: str, intent: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.intent = intent  # what was asked and what became of it, where there is such a record


class Refused(PandoError):
    """A budget or a rule says no. The text names it."""


class Pending(PandoError):
    """An earlier request of this instance has not been answered yet: wait for its answer."""


class NotFound(PandoError):
    """There is no such state path."""


class Invalid(PandoError):
    """The request itself is wrong."""


class Lost(PandoError):
    """What was written since the last commit is not known any more, and nothing was committed: write it again, then commit."""


class Away(PandoError):
    """The agent does not answer: it is being restarted. Instances go on without it; try again."""


_BY_CODE: dict[str, type[PandoError]] = {
    "refused": Refused, "conflict": Pending, "not_found": NotFound, "invalid": Invalid, "too_large": Invalid,
    "lost": Lost, "unavailable": Away,
}


def problem(what: str, status: int, answer: Any) -> PandoError:
    """Turns an answer (RFC 9457) to a request into the error that it means."""
    if not isinstance(answer, dict) or not isinstance(answer.get("detail"), str):
        return PandoError(f"{what}: the agent answered with {status}; its log says more: `pando logs` or journalctl")
    intent = answer.get("intent")
    kind = _BY_CODE.get(str(answer.get("code")), PandoError)
    return kind(answer["detail"], intent if isinstance(intent, dict) else None)
