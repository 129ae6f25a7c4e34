"""Roles of the parts of a representation, defined by what the policy sees, whatever the model calls its latents.

In `2b` the policy sees x, in `four_blocks` y and x together. What holds for all models is stated for roles, not names.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SEEN, REST = "seen", "rest"
"""roles: what the policy sees, and the latents that it does not see"""
WORDS = {SEEN: "seen by the policy", REST: "the rest", "all": "all latents"}


def by_role(parts: Mapping[str, np.ndarray], seen: str) -> dict[str, np.ndarray]:
    """The parts of `Agent.representations`, [n, F] each, by their role. seen: `Agent.seen`.

    `SEEN` is what the policy sees, `REST` all other latents together if there are any, "all" both of them, "encoder"
    the encoder's output if the agent has that part.
    """
    rest = [name for name in parts if name not in {seen, "all", "encoder", *seen.split("+")} and seen != "all"]
    roles = {SEEN: parts[seen]}
    if rest:
        roles |= {REST: np.concatenate([parts[name] for name in rest], -1)}
        roles |= {"all": np.concatenate([roles[SEEN], roles[REST]], -1)}
    return roles | ({"encoder": parts["encoder"]} if "encoder" in parts else {})


def in_words(role: str) -> str:
    """A role in words for readers; other names, and anything after a comma, stay as they are."""
    head, comma, tail = role.partition(",")
    return WORDS.get(head, head) + comma + tail


def sees(seen: str) -> str:
    """Which latents the policy sees, in words, from `Agent.seen`."""
    return f"the policy sees {'all latents' if seen == 'all' else ' and '.join(seen.split('+'))}"
