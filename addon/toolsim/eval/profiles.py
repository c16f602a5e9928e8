"""Defines the sampling profiles, and selects profiles for a model.

A profile applies to a model if one of the profile's ``models`` terms selects the model (``*``: all). The profile
``recommended`` consists of the options in the model's catalog entry, which are from its model card or
generation_config. This profile applies only to models that have such options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolsim.command_line import UsageError
from toolsim.eval.catalog import Model, is_selected
from toolsim.eval.flags import words

Sampling = Mapping[str, Any]
"""Request options, such as ``{"temperature": 0}``."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile. ``values`` are its request options, or None for the options recommended in the catalog."""

    id: str
    tags: tuple[str, ...]
    values: Sampling | None
    models: tuple[str, ...] = ("*",)

    def applies(self, model: Model) -> bool:
        """Return whether the profile applies to a model."""
        return is_selected(model, self.models) and (self.values is not None or bool(model.recommended))

    def sampling(self, model: Model) -> Sampling:
        """Return the request options of the profile for a model."""
        return dict(model.recommended if self.values is None else self.values)


PROFILES = (
    # With a temperature of zero, results can be reproduced, and a comparison shows only the effect of a change.
    Profile("default", ("deterministic",), {"temperature": 0.0}),
    Profile("recommended", ("card",), None),
    Profile("creative", ("chat",), {"temperature": 1.0, "top_p": 0.95}),
    Profile("conversation", ("chat",), {"temperature": 0.7, "top_p": 0.9}),
    Profile("tool_calling", ("tools",), {"temperature": 0.2, "top_p": 0.9}, ("tools",)),
)


def select(selection: str) -> Sequence[Profile]:
    """Return profiles by ID or tag. ``*`` selects all, and ``!`` excludes. Raises UsageError for an unknown profile."""
    chosen: dict[str, Profile] = {}
    for name in words(selection):
        found = [profile for profile in PROFILES if name.lstrip("!") in ("*", profile.id, *profile.tags)]
        if not found:
            raise UsageError(
                f"no such profile: {name}; expected one of {', '.join(profile.id for profile in PROFILES)}"
            )
        for profile in found:
            if name.startswith("!"):
                chosen.pop(profile.id, None)
            else:
                chosen[profile.id] = profile
    return list(chosen.values())
