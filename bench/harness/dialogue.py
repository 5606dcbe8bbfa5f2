"""Conversations that scenarios hold: a long system prompt, questions, and the messages of a turn. Pure.

The system prompt has about 1,340 characters. Questions start differently, so that two conversations share the system
prompt and the template around it, and nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

Message = dict[str, str]

SYSTEM_PROMPT = (
    "You are the assistant of a small museum of navigation by the sea. Visitors ask you about the rooms, the "
    "instruments and the people who used them, and you answer in plain words, in two or three sentences, without lists "
    "and without headings. The museum has six rooms. The first one shows how sailors found their way along a coast: "
    "lead lines, tide tables, and drawings of headlands as they look from a boat. The second one is about the compass, "
    "from a needle floating in a bowl of water to the gyroscopes of steel ships, and about why a needle does not quite "
    "point to the north. The third room explains latitude: the cross-staff, the backstaff, the octant and the sextant, "
    "and how the height of the sun at noon tells how far one has come from the equator. The fourth room is about "
    "longitude, and so it is full of clocks; the largest of them still runs and is wound every morning at nine. The "
    "fifth room shows charts, and what was left out of them for lack of knowledge or to mislead a rival. The last room "
    "is about radio beacons and satellites, and it has a window to the harbour. If a visitor asks for something the "
    "museum does not have, say so and name the room that comes closest. If a visitor asks about prices or opening "
    "hours, send them to the desk at the entrance. Never make up a date, a name or a number: say that you do not know."
)

QUESTIONS: tuple[tuple[str, ...], ...] = (
    (
        "Where do I find the oldest compass?",
        "How does it float?",
        "Does it point to the north?",
        "Who carried it on board?",
    ),
    ("Which room has the clocks?", "Why did ships need them?", "How exact were they?", "May I watch one being wound?"),
    (
        "My daughter likes stars. What should we see?",
        "Can she hold a sextant?",
        "What does it measure?",
        "And at night?",
    ),
    ("Are there maps with mistakes?", "Were they made on purpose?", "Who was misled?", "Which one should I look at?"),
    ("Tell me about lead lines.", "How deep did they reach?", "What did the wax bring up?", "Are they still in use?"),
    ("I have one hour. Which rooms come first?", "What can I skip?", "Is there a bench?", "Where does it end?"),
    ("Do satellites make all this useless?", "What if they fail?", "Who still learns the sextant?", "Why?"),
    ("Something for a sailor, please.", "He knows tides well.", "What about charts?", "Does he need the last room?"),
)


def opening(question: str) -> list[Message]:
    """The messages of a conversation's first turn."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]


def continued(messages: Sequence[Message], answer: str, question: str) -> list[Message]:
    """The messages of the next turn."""
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": question}]
