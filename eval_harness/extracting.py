"""A chatty model as a policy: reasoning is taken out of what it says, and the action is found in the rest."""

from __future__ import annotations

from collections.abc import Sequence

from env_servers.extraction import find_action, without_reasoning
from env_servers.policy import Action, Context, Policy

RAW = "raw"  # in `Action.info`, which an episode's row keeps: what was said, where that is not the action
ROOM = 128  # tokens of an action for a model that says more than the action


class Extracting:
    """A policy whose actions are found in another's words.

    What it said is kept in `Action.info` where it is not the action. Without an action in it, the environment is given
    all of it, and counts it as invalid; so it is with reasoning that the token budget cut.

    Args:
        policy: Who speaks.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self.name = policy, policy.name

    def act(self, contexts: Sequence[Context]) -> list[Action]:
        """One action for each context."""
        actions = self._policy.act(contexts)
        return [_extracted(context, action) for context, action in zip(contexts, actions, strict=True)]


def _extracted(context: Context, action: Action) -> Action:
    said = without_reasoning(action.text)
    found = None if said is None else find_action(context.spec.id, said, context.observation)
    text = action.text if found is None else found
    return action if text == action.text else action._replace(text=text, info={RAW: action.text})
