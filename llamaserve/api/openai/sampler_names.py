"""The names clients give to samplers, as llama-server reads them. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.errors import BadSampler
from llamaserve.sampling import SAMPLERS

LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
}
_OTHER_NAMES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical": "typ_p", "typical_p": "typ_p"}
_NAMES = {
    **{name: name for name in SAMPLERS},
    **{name.replace("_", "-"): name for name in SAMPLERS},
    **{name.replace("_", ""): name for name in SAMPLERS},
    **_OTHER_NAMES,
}

INFILL = ("infill", "i")
"""llama.cpp's sampler for gaps in code, its name and its letter. It compares every token with every other."""


def without_infill(samplers: str | Sequence[str]) -> str | list[str]:
    """The samplers but for llama.cpp's ``infill``."""
    if isinstance(samplers, str):
        return "".join(letter for letter in samplers if letter not in INFILL)
    return [name for name in samplers if name.lower() not in INFILL]


def sampler_names(samplers: str | Sequence[str]) -> tuple[str, ...]:
    """Our names of samplers, from a list of names or a string of letters.

    Raises BadSampler for one that is not there: llama.cpp's ``infill`` is among them.
    """
    names, what = (LETTERS, "letters") if isinstance(samplers, str) else (_NAMES, "names")
    known = []
    for given in samplers:
        name = names.get(given if isinstance(samplers, str) else given.lower())
        if name is None:
            there = "".join(LETTERS) if isinstance(samplers, str) else ", ".join(SAMPLERS)
            raise BadSampler(
                "samplers", given, f"a string of {what} out of {there}" if names is LETTERS else f"one of {there}"
            )
        known.append(name)
    return tuple(known)
