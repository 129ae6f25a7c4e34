"""The available distractors and their options; see `suites` for tasks. Cheap to import."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

from denoised_mdp.envs.distractors import (
    BodyColor,
    CameraJitter,
    CameraPose,
    Distractor,
    Lighting,
    NoisySensor,
    VideoBackground,
)
from denoised_mdp.envs.robodesk.distractors import ButtonNoise, CameraShake, MovingLights
from denoised_mdp.envs.robodesk.tv import TV
from denoised_mdp.envs.sensors import SENSORS, WITHOUT_SENSOR
from denoised_mdp.envs.suites import find_suite
from denoised_mdp.errors import UserError, did_you_mean, one_line
from denoised_mdp.options import check_options, convert, defaults
from denoised_mdp.plugins import Registry

# In the order of application, innermost first.
_ORDER = (
    *(TV, ButtonNoise, MovingLights, CameraShake),
    *(BodyColor, Lighting, CameraPose, VideoBackground, NoisySensor, CameraJitter),
)
DISTRACTORS: Registry[type[Distractor]] = Registry("distractor", {kind.name: kind for kind in _ORDER})


def register_distractor(kind: type[Distractor]) -> type[Distractor]:
    """Register a distractor under its name; it wraps those registered before. Usable as a decorator.

    Raises:
        UserError: the name is taken or not allowed, or its `Options` are not valid options.
    """
    check_options(getattr(kind, "Options", None), f"distractor {kind.name!r}")
    DISTRACTORS.register(kind.name, kind)
    return kind


def named_distractors(distractors: Mapping[str, Mapping | None] | Iterable[str] | None) -> dict[str, dict[str, Any]]:
    """Return name -> options of distractors given in any form: such a mapping, a list of names, or "a,b".

    Neither names nor values are checked, see `check_distractors`.

    Raises:
        UserError: another form, or options that are not a mapping.
    """
    if isinstance(distractors, str):
        distractors = [name.strip() for name in distractors.split(",") if name.strip() not in ("", "none")]
    if isinstance(distractors, Mapping):
        pairs = list(distractors.items())
    elif isinstance(distractors, Iterable):
        pairs = [(name, None) for name in distractors]
    else:
        pairs = [] if distractors is None else [(distractors, None)]
    for name, options in pairs:
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            example = "{'camera_jitter': {'strength': 0.5}}, or ['camera_jitter']"
            given = repr(name) if options is None else f"{name!r}: {options!r}"
            raise UserError(f"Distractors are given as name and options, such as {example}: not {given}.")
    return {name: dict(options or {}) for name, options in pairs}


def fitting_distractors(suite: str = "dmc", task: str | None = None) -> tuple[str, ...]:
    """Return the names of all distractors that fit a suite, or one of its tasks, in the order of application.

    All of them can be combined; noisy_sensor requires video_background.
    """
    wanted = find_suite(suite)
    if task in wanted.undistracted:
        return ()
    named = wanted.distractors
    found = tuple(name for name, kind in DISTRACTORS.items() if suite in kind.suites or name in named)
    without_sensor = task is not None and task not in SENSORS
    return tuple(name for name in found if not (without_sensor and name == "noisy_sensor"))


def check_distractors(
    distractors: Mapping[str, Mapping | None] | Iterable[str] | None, task: str | None = None, suite: str = "dmc"
) -> dict[str, dict[str, Any]]:
    """Return the distractors in the order of application with all options filled in.

    Args:
        distractors: name -> options (None or empty: the defaults), or names alone, see `named_distractors`.
        task, suite: if given, also check that the distractors fit the task.

    Raises:
        UserError: an unknown name or option, a value out of range, or a distractor that does not fit.
    """
    distractors = named_distractors(distractors)
    for name, options in distractors.items():
        if name not in DISTRACTORS:
            raise UserError(f"Unknown distractor {name!r}.{did_you_mean(name, DISTRACTORS)}")
        kind = DISTRACTORS[name].Options
        fields, types = {field.name: field for field in dataclasses.fields(kind)}, get_type_hints(kind)
        for key, value in options.items():
            if key not in fields:
                raise UserError(f"Distractor {name} has no option {key!r}.{did_you_mean(key, fields)}")
            try:
                options[key] = convert(value, types[key], fields[key].metadata)
            except ValueError as error:
                raise UserError(
                    f"Distractor {name}: {key} must be {error}, not {one_line(repr(value), 200)}."
                ) from None
    fitting = fitting_distractors(suite, task)
    for name in distractors if task is not None else ():
        if task in find_suite(suite).undistracted:
            raise UserError(f"Task {task!r} takes no distractors: all of its pixels carry information.")
        if name not in fitting and name == "noisy_sensor":
            why = WITHOUT_SENSOR.get(task, "it is not of the DeepMind Control Suite")
            raise UserError(f"Task {task!r} has no scalar sensor for noisy_sensor: {why}.")
        if name not in fitting:
            takes = ", ".join((*fitting, "none"))
            raise UserError(f"Distractor {name} does not fit suite {suite!r}. Choose among distractors={takes}.")
    if "noisy_sensor" in distractors and "video_background" not in distractors:
        raise UserError("Distractor noisy_sensor reads the background video: add video_background as well.")
    return {
        name: defaults(kind.Options) | distractors[name] for name, kind in DISTRACTORS.items() if name in distractors
    }
