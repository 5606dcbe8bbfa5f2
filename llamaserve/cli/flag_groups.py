"""Groups of command-line flags: written once as a dataclass, taken by many commands as one parameter."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_flag_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of a command's dataclass parameters instead of these parameters.

    The fields are annotated as Typer wants its options; the command gets the dataclasses filled in. Fields of one
    command's groups must have different names.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}
    flags = {name: list(_flags_of(group)) for name, group in groups.items()}
    plain = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in groups
    ]
    parameters = [*plain, *(flag for group_flags in flags.values() for flag in group_flags)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{flag.name: values.pop(flag.name) for flag in flags[name]})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions take any attribute
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _flags_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]
