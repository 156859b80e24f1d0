"""The Space's page: paste episodes as JSON, read their scores."""

from __future__ import annotations

import json
from typing import Any

EXAMPLE = """[
  {"episode_return": -7.0, "success": true, "num_turns": 8, "num_invalid": 0},
  {"episode_return": -104.0, "success": false, "num_turns": 101, "num_invalid": 1}
]"""


def score_text(text: str, task: str) -> dict[str, Any]:
    """The scores of episodes given as a JSON list, or the reason why there are none.

    Args:
        text: JSON list of episodes.
        task: Task id, or nothing.
    """
    from lmrl_score import LMRLScore

    try:
        result: dict[str, Any] = LMRLScore().compute(predictions=json.loads(text), task=task.strip() or None)
    except (ValueError, TypeError, KeyError) as error:
        return {"error": str(error)}
    return result


def main() -> None:
    """Serve the page."""
    import gradio
    from lmrl_score import DESCRIPTION

    gradio.Interface(
        score_text,
        [
            gradio.Code(EXAMPLE, language="json", label="Episodes"),
            gradio.Textbox("maze", label="Task", info="Leave empty for scores without a scale"),
        ],
        gradio.JSON(label="Scores"),
        title="LMRL score",
        description=DESCRIPTION,
    ).launch()


if __name__ == "__main__":
    main()
