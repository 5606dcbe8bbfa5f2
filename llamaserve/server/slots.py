"""``GET /slots``: what each slot does and holds, in llama-server's shape with more fields. Event loop only.

Never waits for the engine, and shows no prompt, no text and no salt; where several clients have keys, to each the names
of its own requests and sessions only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.caller import Caller, caller_of
from llamaserve.cache.prefix_memory import Holder
from llamaserve.errors import BadRequest, CapacityError, shown
from llamaserve.scheduler.slot_view import SlotView
from llamaserve.service import Service

SLOTS_PATH = "/slots"
IDLE = "idle"
PARKED = "parked"


class NextToken(msgspec.Struct):
    """How far the text of a slot is."""

    n_decoded: int


class SequenceItem(msgspec.Struct, omit_defaults=True):
    """A slot or a parked sequence; what it has no value for is left out."""

    id: int
    n_ctx: int
    is_processing: bool
    state: str
    n_tokens: int
    """Tokens the memory holds of it."""
    n_shared: int
    """Of these, tokens another sequence holds too, in the same cells."""
    session: str | None = None
    request_id: str | None = None
    n_prompt_tokens: int | None = None
    n_prompt_tokens_processed: int | None = None
    """Tokens computed of the prompt."""
    n_prompt_tokens_cache: int | None = None
    """Tokens of the prompt that were not computed for this request."""
    next_token: tuple[NextToken] | None = None


class Slots:
    """The slots route. ``service`` gives the running service and raises EngineDown while there is none."""

    def __init__(self, service: Callable[[], Service], *, are_shown: bool) -> None:
        self._service = service
        self._are_shown = are_shown

    def routes(self) -> list[Route]:
        """The route, for an application's list."""
        return [Route(SLOTS_PATH, self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        """An array with an item for each slot; ``?parked=true`` adds one for each parked sequence, and
        ``?fail_on_no_slot=1`` asks for a 503 when no slot is idle.

        Raises EngineDown, BadRequest for a query that is neither yes nor no, CapacityError when no slot is idle.
        """
        if not self._are_shown:
            raise HTTPException(501, "the slots are not shown: the server was started with --no-slots")
        wants_parked, must_be_idle = (_is_wanted(request, name) for name in ("parked", "fail_on_no_slot"))
        service = self._service()
        slots = service.slots()
        if must_be_idle and all(slot.state != IDLE for slot in slots):
            raise CapacityError("no slot is idle")
        items = sequence_items(slots, service.holders(), service.info.n_ctx_seq, caller_of(request.scope))
        shown_items = items if wants_parked else items[: len(slots)]
        return Response(msgspec.json.encode(shown_items), media_type="application/json")


def sequence_items(
    slots: Sequence[SlotView], holders: Sequence[Holder], n_ctx: int, caller: Caller
) -> list[SequenceItem]:
    """An item for each slot, then one for each holder that no slot has, by id; with the names the caller may see."""
    held = {holder.seq_id: holder for holder in holders}
    items = [_slot_item(slot, held.pop(slot.seq_id, None), n_ctx, caller) for slot in slots]
    return items + [_sequence_item(held[seq_id], n_ctx, PARKED, caller) for seq_id in sorted(held)]


def _slot_item(slot: SlotView, holder: Holder | None, n_ctx: int, caller: Caller) -> SequenceItem:
    item = _sequence_item(holder or Holder(slot.seq_id, 0, 0), n_ctx, slot.state, caller)
    if slot.state != IDLE:
        item.is_processing = True
        may_see = caller.may_see(slot.owner)
        item.session = slot.session if may_see else None
        item.request_id = slot.request_id if may_see else None
        item.n_prompt_tokens = slot.n_prompt
        item.n_prompt_tokens_processed = max(0, slot.n_computed - slot.n_cached)
        item.n_prompt_tokens_cache = slot.n_cached
        item.next_token = (NextToken(slot.n_generated),)
    return item


def _sequence_item(holder: Holder, n_ctx: int, state: str, caller: Caller) -> SequenceItem:
    session = holder.session if caller.may_see_scope(holder.session_scope) else None
    return SequenceItem(holder.seq_id, n_ctx, False, state, holder.n_tokens, holder.n_shared, session)


def _is_wanted(request: Request, name: Literal["parked", "fail_on_no_slot"]) -> bool:
    """A query parameter that says yes or no; no if it is not there. Raises BadRequest."""
    answer = request.query_params.get(name, "0")
    if answer in ("1", "true"):
        return True
    if answer in ("0", "false"):
        return False
    raise BadRequest(f"{name} is {shown(answer)}: it must be 1, true, 0 or false", name)
