"""What all talk with the Hub needs: bounded retries, and errors that say what to do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import httpx2
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

T = TypeVar("T")

# Everything the Hub's clients raise; HfHubHTTPError and its kind are httpx2.HTTPError.
HUB_ERRORS = (httpx2.HTTPError, DatasetNotFoundError, HFValidationError)
# 409: another commit is being made; 412: the branch moved on; the rest: the server is busy or broken.
RETRIED_STATUS = frozenset({409, 412, 429, 500, 502, 503, 504})
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds


class Published(NamedTuple):
    """What became of a dataset or of results.

    Attributes:
        repo_id: The repository.
        revision: Commit sha that holds them, also where nothing had to be committed.
        changed: False where the repository already held the very same.
        pull_request: Address of the pull request, if one was asked for.
    """

    repo_id: str
    revision: str
    changed: bool
    pull_request: str | None


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of the client carries, or None."""
    response = getattr(error, "response", None)
    status: int | None = getattr(response, "status_code", None)
    return status


def with_retries(action: Callable[[], T], attempts: int = 8) -> T:
    """Run an action on the Hub until it succeeds, at most `attempts` times.

    `huggingface_hub` does not try a commit again, and datasets' own loop never runs with huggingface_hub 2.x, so
    of several processes committing to one repository all but one would fail. The wait doubles each time and is
    drawn at random below that, so that processes that met once do not meet again; `Retry-After` is honoured.

    Args:
        action: Must be idempotent: an answer can be lost after the Hub did the work.
        attempts: How often to try in all.

    Raises:
        HfHubHTTPError: The error of the last attempt, or the first one that trying again cannot mend.
    """
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except httpx2.HTTPError as error:
            status = status_of(error)
            lost = not isinstance(error, HfHubHTTPError)  # no answer at all
            if attempt == attempts or not (lost or status in RETRIED_STATUS):
                raise
            wait = random.SystemRandom().uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2**attempt))
            time.sleep(max(wait, _retry_after(error)))
    raise AssertionError("the loop returns or raises")


def _retry_after(error: BaseException) -> float:
    response = getattr(error, "response", None)
    value = response.headers.get("retry-after", "") if response is not None else ""
    return min(float(value), LONGEST_WAIT) if value.isdigit() else 0.0


def explain(error: Exception, what: str, revision: str | None = None) -> Exception:
    """An error of the Hub's client as one that says what happened and what to do.

    Args:
        error: One of `HUB_ERRORS`.
        what: `dataset lmrl/maze`, `model lmrl/maze-bc`.
        revision: What was asked for.

    Returns:
        A FileNotFoundError where there is nothing (to see), a PermissionError where the token does not suffice, a
        ConnectionError where the Hub did not answer as it should.
    """
    status = status_of(error)
    if isinstance(error, RevisionNotFoundError):
        return FileNotFoundError(f"{what} has no revision {revision!r}; see its branches and tags on the Hub")
    # datasets raises one class for missing, private and gated, and drops the cause; its sentence is what is left.
    gated = isinstance(error, DatasetNotFoundError) and "gated dataset" in str(error)
    if gated or isinstance(error, GatedRepoError):
        return PermissionError(
            f"{what} is gated: ask for access on its page on the Hub, then log in as that user with `hf auth login`"
        )
    if status == 401 and not isinstance(error, RepositoryNotFoundError):
        return PermissionError(f"the Hub does not know the token it was given for {what}; run `hf auth login`")
    if isinstance(error, RepositoryNotFoundError | DatasetNotFoundError | HFValidationError):
        return FileNotFoundError(
            f"{what} does not exist, or it is private and your token may not read it; check the name, and log in "
            "with `hf auth login` if it is private"
        )
    if status == 403:
        return PermissionError(
            f"your token may not do this to {what}; it needs the role `write`, or that permission if it is "
            f"fine-grained: make one under Settings, Access Tokens, and run `hf auth login`. The Hub said: {error}"
        )
    if status in (409, 412):
        return ConnectionError(f"others kept committing to {what}; run the same command again. The Hub said: {error}")
    return ConnectionError(f"the Hub could not be reached or failed for {what}; try again later. Reason: {error}")
