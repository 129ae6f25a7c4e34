"""Find and make Gymnasium environments by id or by the path of a function."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.plugins import import_path

VARIABLE = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def make_gym(task: str, size: int) -> gym.Env:
    """Make the environment of an id or a path, with ``render_mode="rgb_array"`` if it accepts that."""
    with contextlib.suppress(UserError):  # raised on a machine without OpenGL, which not every environment needs
        import_module("denoised_mdp.envs.gl")  # chooses MuJoCo's backend before anything imports mujoco
    spec, create = find_gym(task)
    known = ("render_mode", *(() if spec is None else spec.kwargs))
    required = [one for one in _parameters(create) if one.default is one.empty and one.kind not in VARIABLE]
    if missing := [one.name for one in required if one.name not in known]:
        raise UserError(
            f"{task} needs arguments ({', '.join(missing)}): write a function without arguments that returns the"
            " environment, and name that one."
        )
    options: dict[str, Any] = {}
    if _accepts(create, "render_mode"):
        options["render_mode"] = "rgb_array"
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame looks for a display, which may be missing
    of_mujoco = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco")
    if of_mujoco:
        options |= {"width": size, "height": size}  # else it draws 480 x 480
    try:
        with _quiet() if of_mujoco else contextlib.nullcontext():
            env = create(**options) if spec is None else gym.make(spec, disable_env_checker=True, **options)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"{task}: a package is missing: {error}") from error
    if not isinstance(env, gym.Env):
        raise UserError(f"{task} returns {type(env).__name__}, not a gymnasium.Env.")
    return env


@contextlib.contextmanager
def _quiet():
    """Silence MuJoCo's warnings about deprecated attributes in Gymnasium's own model files."""
    import mujoco

    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(handler)


def check_id(task: str) -> int | None:
    """Return the registered step limit of an environment's episodes, None if there is none.

    Raises:
        UserError: there is no such environment.
    """
    spec, _ = find_gym(task)
    return None if spec is None else spec.max_episode_steps


def find_gym(task: str) -> tuple[gym.envs.registration.EnvSpec | None, Callable[..., gym.Env]]:
    """Return the specification of an id (None for a function's path) and the callable that makes the environment."""
    if not isinstance(task, str) or not task:
        raise UserError("Name an environment: env.id=HalfCheetah-v5, or env.id=package.module:function.")
    module, colon, name = task.rpartition(":")
    if colon:
        found = getattr(import_path(module, module), name, None)
        if callable(found):
            return None, found
    try:
        spec = gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        if colon:
            raise UserError(f"{module} has no function {name!r}, nor does it register an environment of it.") from error
        others = [known for known in gym.registry if not known.startswith("denoised_mdp/")]
        hint = f" {str(error).rstrip('.')}. For your own write env.id=package.module:function."
        near = did_you_mean(name, others, listed=False)
        raise UserError(f"There is no Gymnasium environment {name!r}.{near or hint}") from error
    if not isinstance(spec.entry_point, str):
        return spec, spec.entry_point
    try:
        return spec, load_env_creator(spec.entry_point)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"{task}: a package is missing: {error}") from error
    except AttributeError as error:
        raise UserError(f"{task} is registered, but not there: {error}.") from error


def _parameters(function: Callable) -> list[inspect.Parameter]:
    """Return the parameters of a function or class; none if Python cannot tell, as for some written in C."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []


def _accepts(function: Callable, name: str) -> bool:
    return any(one.name == name or one.kind is one.VAR_KEYWORD for one in _parameters(function))
