"""A small catalog of models, ``catalog.json``, from which terms on the command line select models.

``tags``: ``stable`` = in the default selection of hosted models; ``open`` = open weights; ``local`` = runs on a laptop;
``tools`` = trained and documented for tool calls. ``tool_calling_reliable`` states whether the model's native calls
reliably arrive as calls, rather than as text that looks like a call. It is False only if we measured this, and None if
unknown. The terms ``reliable`` and ``unreliable`` select models by this field.

Hosted models can disappear, so a model that the server does not list is skipped unless its exact ID was specified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from toolsim.command_line import UsageError
from toolsim.eval.case import data_file
from toolsim.eval.flags import DEFAULT_MODELS, words


@dataclass(frozen=True, slots=True)
class Model:
    """One model. ``id`` is its name on the server. Several IDs of the same model share a ``base_id``.

    ``options`` are request options that the model always needs. ``recommended`` are those that its model card suggests.
    """

    id: str
    base_id: str
    provider: str
    tags: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    recommended: Mapping[str, Any] = field(default_factory=dict)
    tool_calling_reliable: bool | None = None


_RELIABLE = {True: ("reliable",), False: ("unreliable",), None: ()}

CATALOG = tuple(Model(**{**entry, "tags": tuple(entry["tags"])}) for entry in data_file("catalog.json"))


def is_selected(model: Model, named: Sequence[str]) -> bool:
    """Return whether one of the terms in ``named`` selects the model.

    A term is an ID, base ID, provider or tag, ``reliable``, ``unreliable``, ``all``, or a pattern. The pattern ``N:*``
    also matches ``N``.
    """
    names = {model.id, model.base_id, model.provider, *model.tags, *_RELIABLE[model.tool_calling_reliable], "all"}
    return any(word in names or _matches(model.id, word) for word in named)


def _matches(id: str, word: str) -> bool:
    return "*" in word and (fnmatchcase(id, word) or id == word.removesuffix(":*"))


def select(selection: str, served: Sequence[str] = ()) -> list[Model]:
    """Return the models that a list of terms selects, in order. ``!`` removes models selected by earlier terms.

    ``served`` contains the IDs that the server lists, or is empty if they are unknown. A term that matches no catalog
    entry is the name of a model on the server, and a pattern can match the server's IDs. If the list contains only
    exclusions, they apply to the default selection. Raises UsageError for an exclusion that matches no model.
    """
    chosen: dict[str, Model] = {}
    given = words(selection)
    if given and all(word.startswith("!") for word in given):
        given = [DEFAULT_MODELS, *given]
    for word in given:
        name = word.removeprefix("!")
        if word.startswith("!"):
            excluded = [
                model.id
                for model in chosen.values()
                if name == model.id or (not _is_id(name) and is_selected(model, (name,)))
            ]
            if not excluded:
                raise UsageError(f"--models: {word} matches none of the selected models: {', '.join(chosen) or 'none'}")
            for id in excluded:
                del chosen[id]
            continue
        for model in _named(name, served):
            chosen[model.id] = model
    return list(chosen.values())


def missing(selection: str, served: Sequence[str]) -> list[str]:
    """Return the selected IDs that the server does not list, except for IDs that the user specified exactly."""
    exact = set(words(selection))
    gone = (model.id for model in select(selection, served) if not is_served(model.id, served))
    return [id for id in gone if id not in exact]


def is_served(id: str, served: Sequence[str]) -> bool:
    """Return whether a server has the model. OpenRouter accepts ``:nitro`` after any ID, without listing these IDs."""
    return id.removesuffix(":nitro") in served or id in served


def differences(served: Sequence[str]) -> str:
    """Describe the models that only the server lists, and the hosted models that only the catalog lists."""
    known = {model.id for model in CATALOG}
    hosted = [model.id for model in CATALOG if "local" not in model.tags]
    lacking = sorted(set(served) - known)
    gone = [id for id in hosted if not is_served(id, served)]
    return "\n".join(
        f"{label} ({len(ids)} of {count}): {', '.join(ids) or 'none'}"
        for label, ids, count in (
            ("not in the catalog", lacking, len(set(served))),
            ("not listed by the server", gone, len(hosted)),
        )
    )


def are_ids(selection: str) -> bool:
    """Return whether a selection contains only exact model IDs. If so, the server's list is not needed."""
    given = words(selection)
    return (
        bool(given)
        and all(
            _is_id(word) or (not any(is_selected(model, (word,)) for model in CATALOG) and "*" not in word)
            for word in given
            if not word.startswith("!")
        )
        and not given[0].startswith("!")
    )


def _named(name: str, served: Sequence[str]) -> list[Model]:
    if _is_id(name):
        return [model for model in CATALOG if model.id == name]
    found = [model for model in CATALOG if is_selected(model, (name,))]
    known = {model.id for model in found}
    found += [Model(id, id, id.partition("/")[0]) for id in served if _matches(id, name) and id not in known]
    return found or ([] if "*" in name else [Model(name, name, "")])


def _is_id(name: str) -> bool:
    return any(model.id == name for model in CATALOG)
