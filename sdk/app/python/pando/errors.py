"""The errors of Pando. The text of an error is the reason and the next step."""

from __future__ import annotations

from typing import Any


class PandoError(Exception):
    """Pando failed to do something. Each subclass is one kind of failure."""

    def __init__(self, reason: str, intent: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.intent = intent  # the request and its outcome, if Pando recorded it


class Refused(PandoError):
    """A budget or a rule refuses. The text names it."""


class Pending(PandoError):
    """An earlier request of this instance is still open: wait for its answer."""


class NotFound(PandoError):
    """The state path does not exist."""


class Invalid(PandoError):
    """The request is invalid."""


class Lost(PandoError):
    """The agent lost writes since the last commit, and committed nothing: write them again."""


class Away(PandoError):
    """The agent does not answer because it restarts. Instances continue without it; try again."""


_BY_CODE: dict[str, type[PandoError]] = {
    "refused": Refused,
    "conflict": Pending,
    "not_found": NotFound,
    "invalid": Invalid,
    "too_large": Invalid,
    "lost": Lost,
    "unavailable": Away,
    "unreachable": Away,
    "busy": Away,
}


def problem(what: str, status: int, answer: Any) -> PandoError:
    """Turns an answer (RFC 9457) to a request into its error."""
    if not isinstance(answer, dict) or not isinstance(answer.get("detail"), str):
        return PandoError(
            f"{what}: the agent answered with {status}; its log has the reason: `pando logs` or"
            " journalctl"
        )
    intent = answer.get("intent")
    kind = _BY_CODE.get(str(answer.get("code")), PandoError)
    return kind(answer["detail"], intent if isinstance(intent, dict) else None)
