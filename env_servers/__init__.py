"""Tasks, the loop that plays them, and scores. Standard library only."""
