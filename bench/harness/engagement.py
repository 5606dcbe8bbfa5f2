"""Whether a server reuses a prompt at all, found out in a second before minutes are spent on it."""

from __future__ import annotations

import asyncio

from bench.harness.figures import require_complete
from bench.harness.prompts import distinct_prompts
from bench.harness.rounds import NotEngaged
from bench.harness.serving import Running
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.drive import closed_loop

N_PROBE = 64
PROBE_SEED = 2_000_000  # no scenario's own seeds are so large


def require_reuse(running: Running, n_vocab: int) -> None:
    """Send one prompt twice. Raises NotEngaged when nothing of the second came from a cache."""
    body = {"max_tokens": 1, "ignore_eos": True, "temperature": 0, **running.arm.body}
    call = Call({"prompt": distinct_prompts(1, N_PROBE, PROBE_SEED, n_vocab)[0], **body}, expected_tokens=1)
    outcomes = asyncio.run(closed_loop(running.url, [call, call], concurrency=1))
    require_complete(outcomes, running.arm.name)
    if not outcomes[1].cached_tokens:
        raise NotEngaged("a prompt that is sent twice is computed twice")
