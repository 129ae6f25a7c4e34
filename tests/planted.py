"""Errors that are planted on purpose, one at a time, and the tests that must notice them.

An error replaces a function by one that wraps it, so that a function may be rewritten as long as it keeps its meaning.
Those of the mathematics are in test_oracle_sensitivity.py.
"""

import inspect

import pytest


def assert_noticed(error: tuple, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant an error and run the test that must notice it: that fails, and for no other reason than an assertion.

    error: owner and name of what is replaced, a function from the right thing to the wrong one, and the test, which
    gets fixtures for those of its arguments that it lacks.
    """
    owner, name, wrong, test = error
    monkeypatch.setattr(owner, name, wrong(inspect.getattr_static(owner, name)))
    missing = [p.name for p in inspect.signature(test).parameters.values() if p.default is p.empty]
    fixtures = {fixture: request.getfixturevalue(fixture) for fixture in missing}
    with pytest.raises(AssertionError):
        test(**fixtures)


def argument_changed(name, change):
    """A function that gets another value for one of its arguments, however that is handed over."""

    def plant(right):
        def wrong(*arguments, **options):
            bound = inspect.signature(right).bind(*arguments, **options)
            bound.apply_defaults()
            bound.arguments[name] = change(bound.arguments[name])
            return right(*bound.args, **bound.kwargs)

        return wrong

    return plant


def answers_changed(change):
    """What the pool's environments answer, changed: [(observation, reward, terminated, truncated, info) or None]."""
    return lambda step: lambda self, actions: change(step(self, actions))


def rewards_changed(change):
    """What the pool's environments answer, with other rewards."""
    return answers_changed(lambda answers: [a and (a[0], change(a[1]), *a[2:]) for a in answers])


class Positive:
    """A generator whose uniform numbers are never negative."""

    def __init__(self, rng):
        self.rng = rng

    def uniform(self, low, high, shape):
        return abs(self.rng.uniform(low, high, shape))
