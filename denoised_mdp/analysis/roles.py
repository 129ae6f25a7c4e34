"""What parts of a representation are to the policy, whatever the model calls its latents.

Of `2b` the policy sees x, of `four_blocks` y and x together: what holds for all models is said of roles, not of names.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SEEN, REST = "seen", "rest"
"""roles: what the policy sees, and the latents that it does not see"""
WORDS = {SEEN: "seen by the policy", REST: "the rest", "all": "all latents"}


def by_role(parts: Mapping[str, np.ndarray], seen: str) -> dict[str, np.ndarray]:
    """The parts of `Agent.representations`, [n, F] each, by what they are to the policy. seen: of the agent.

    `SEEN` is what the policy sees, `REST` all other latents together if there are any, "all" both, "encoder" the
    encoder's output if the agent tells one.
    """
    rest = [name for name in parts if name not in {seen, "all", "encoder", *seen.split("+")} and seen != "all"]
    roles = {SEEN: parts[seen]}
    if rest:
        roles |= {REST: np.concatenate([parts[name] for name in rest], -1)}
        roles |= {"all": np.concatenate([roles[SEEN], roles[REST]], -1)}
    return roles | ({"encoder": parts["encoder"]} if "encoder" in parts else {})


def in_words(role: str) -> str:
    """A role, with or without what follows a comma, for readers; other names stay."""
    head, comma, tail = role.partition(",")
    return WORDS.get(head, head) + comma + tail


def sees(seen: str) -> str:
    """Which latents the policy sees, in words, from `Agent.seen`."""
    return f"the policy sees {'all latents' if seen == 'all' else ' and '.join(seen.split('+'))}"
