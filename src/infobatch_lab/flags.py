"""Options of the command line, derived from `Settings` and from the tasks' `Options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field
from typing import Annotated, Any, get_type_hints

import typer

from infobatch_lab import tasks
from infobatch_lab.options import in_words
from infobatch_lab.settings import Settings, declared


def option(field: Field[Any], kind: Any, *, swept: bool, task_name: str = "") -> inspect.Parameter:
    """A setting as an option. One that is not given is None, so that the data set may say it."""
    flag = "--" + field.name.replace("_", "-")
    text, choices = field.metadata["help"], field.metadata["choices"]
    if field.name == "model":
        of_tasks = [name for recipe in tasks.RECIPES.values() for name in recipe.task.models]
        choices = list(dict.fromkeys(of_tasks))
    if choices:
        text += f": {in_words(choices)}"
    if task_name:
        text += f" ({task_name})"
    if swept:
        kind, text = str, f"{text}; one or more, separated by commas"
    if "[default" not in text:
        default = "per data set" if field.default is MISSING else field.default
        suited = any(field.name in recipe.defaults for recipe in tasks.RECIPES.values())
        or_suited = ", or what suits the data set" if suited and default != "per data set" else ""
        text += "" if default is None or default is False else f" [default: {default}{or_suited}]"
    annotation = Annotated[kind | None, typer.Option(flag, help=text)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, default=None, annotation=annotation)


def setting_options(
    swept: Collection[str] = (), without: Collection[str] = ()
) -> list[inspect.Parameter]:
    """The options of all settings: those of every run, and those of single tasks."""
    kinds: dict[type, str] = {Settings: ""}
    for recipe in tasks.RECIPES.values():
        kinds.setdefault(recipe.task.Options, recipe.task.name)
    found: dict[str, inspect.Parameter] = {}
    for kind, task_name in kinds.items():
        hints = get_type_hints(kind)
        for name, field in declared(kind).items():
            if name != "data" and name not in without:
                shown = option(field, hints[name], swept=name in swept, task_name=task_name)
                found.setdefault(name, shown)
    return list(found.values())


def with_settings(
    *, swept: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each setting but those in `without`; it gets them as one dict,
    `given`. Those in `swept` may be several values.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        extra = setting_options(swept, without)
        names = {parameter.name for parameter in extra}
        own = inspect.signature(command, eval_str=True)
        kept = [p for p in own.parameters.values() if p.name != "given"]

        def called(**values: Any) -> None:
            given = {name: values.pop(name) for name in list(values) if name in names}
            command(given=given, **values)

        first, *others = (p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept)
        called.__signature__ = own.replace(parameters=[first, *extra, *others])  # type: ignore[attr-defined]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate
