"""Choose the probe results that a report compares: one set of options for all runs, one step for a group's seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from denoised_mdp.analysis.probe import CLIPS
from denoised_mdp.analysis.report.data import RunData

Tree = dict[str, Any]
Found = list[tuple[RunData, Tree]]
"""pairs of a run and one of its results"""


def options_of(tree: Mapping[str, Any]) -> str:
    """The options that comparable results share, including the split, as text."""
    return json.dumps(tree.get("options") or {}, sort_keys=True, default=str)


def size_of(tree: Mapping[str, Any]) -> float:
    """Total actions of a result's episodes; 0 if unknown."""
    options = tree.get("options") or {}
    sizes = [options.get(name) for name in ("episodes", "steps")]
    return float(sizes[0]) * float(sizes[1]) if all(isinstance(size, int) for size in sizes) else 0.0


def options_text(tree: Mapping[str, Any]) -> str:
    """The options of a result in a few words: ``36 episodes of 200 actions, unseen clips, seeds 2``."""
    options = dict(tree.get("options") or {})
    words = []
    if {"episodes", "steps"} <= options.keys():
        words.append(f"{options.pop('episodes')} episodes of {options.pop('steps')} actions")
    split = str(options.pop("split", ""))
    words += [CLIPS.get(split, split)] if split else []
    usual = {"seeds": 1, "behaviour": "mixed"}
    simple = {key: value for key, value in options.items() if isinstance(value, int | float | str)}
    words += [f"{key} {value}" for key, value in simple.items() if usual.get(key) != value]
    return ", ".join(words)


def common_options(runs: Sequence[RunData], probe: str, split: str | None = None) -> str | None:
    """The options of one probe that most runs share; a tie goes to the most actions. None without results.

    split: only results with this kind of clips; by default, any result with training clips comes before all others.
    """
    kinds: dict[str, list[Tree]] = {}
    for run in runs:
        own = {options_of(tree): tree for tree in run.probes.get(probe, []) if split in (None, tree["split"])}
        for options, tree in own.items():
            kinds.setdefault(options, []).append(tree)

    def rank(options: str) -> tuple:
        trees = kinds[options]
        return trees[0]["split"] == "train", len(trees), size_of(trees[0]), options

    return max(kinds, key=rank, default=None)


def results_with(runs: Sequence[RunData], probe: str, options: str | None) -> Found:
    """All results of a probe with these options, at any step."""
    return [(run, tree) for run in runs for tree in run.probes.get(probe, []) if options_of(tree) == options]


def results_at_common_step(runs: Sequence[RunData], probe: str, options: str | None) -> Found:
    """Results with these options at the step that most runs share; a tie goes to the last step."""
    found = results_with(runs, probe, options)
    if not found:
        return []
    counts = Counter(tree["step"] for _, tree in found)
    step = max(counts, key=lambda step: (counts[step], step))
    return [(run, tree) for run, tree in found if tree["step"] == step]


def shown(runs: Sequence[RunData], everyone: Sequence[RunData], probe: str) -> Found:
    """One result per run and split: the compared one or, if missing, the newest, and the largest of those.

    For a probe that compares runs: one result per choice of runs and checkpoints.
    """
    found: Found = []
    splits = sorted({tree["split"] for run in runs for tree in run.probes.get(probe, [])})
    for split in splits:
        compared = results_at_common_step(runs, probe, common_options(everyone, probe, split))
        chosen = {id(tree) for _, tree in compared}
        for run in runs:
            own = [tree for tree in run.probes.get(probe, []) if tree["split"] == split]
            own.sort(key=lambda one: (id(one) in chosen, one["step"], size_of(one)))
            best = {str((tree.get("runs"), tree.get("checkpoint"))): tree for tree in own}  # the last one wins
            found += [(run, tree) for tree in best.values()]
    return sorted(found, key=lambda one: next(i for i, run in enumerate(runs) if run is one[0]))
