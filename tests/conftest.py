"""Shared fixtures. Every test is offline: only loopback addresses are ever asked."""

from __future__ import annotations

import os

# Read at import by the Hub's clients: set before any test imports them. In-process tests read local folders only;
# what talks with a Hub runs in a subprocess against tests/hub_server.py.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Two test processes with two threads each, on two cores, wait for one another far longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
