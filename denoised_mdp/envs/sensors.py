"""The scalar sensor that each task's reward reads and `noisy_sensor` shifts. Cheap to import.

Wang et al. 2022 define it for cheetah_run, walker_walk and reacher_easy: speed, torso height and finger distance. A
unit offset is the value at which the reward is full (10, 1.2, the sum of the radii). We extend the rule to other
tasks. A sensor is a number that a method of the task's physics returns and the reward reads; if there are several, it
is the one that the task is about. The unit depends on the range of full reward: its bound if it is open on one side,
its width if it is an interval, and the margin if it is a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sensor:
    """A scalar sensor that a reward reads.

    Attributes:
        method: name of the method of the task's dm_control physics that returns the value.
        unit: the shift by a unit offset, as a number or as a function of the physics.
        meaning: sensor and unit in words.
    """

    method: str
    unit: float | Callable[[Any], float]
    meaning: str

    def shift(self, physics: Any, offset: float) -> float:
        """Return by how much `offset` shifts the sensor."""
        return offset * float(self.unit(physics) if callable(self.unit) else self.unit)


def _size(kind: str, *names: str) -> Callable[[Any], float]:
    """Return a function of the physics that sums the first sizes of geoms or sites."""
    return lambda physics: getattr(physics.named.model, f"{kind}_size")[list(names), 0].sum()


def _height(bound: float, of: str) -> str:
    return f"height of the {of}; {bound:g} m, that of standing"


SENSORS: dict[str, Sensor] = {
    "cheetah_run": Sensor("speed", 10.0, "speed; 10 m/s, that of full reward"),
    "reacher_easy": Sensor(
        "finger_to_target_dist", _size("geom", "target", "finger"), "distance of finger and target; their radii"
    ),
    "acrobot_swingup": Sensor("to_target", _size("site", "target"), "distance of tip and target; its radius"),
    "hopper_stand": Sensor("height", 0.6, _height(0.6, "torso over the foot")),
    "hopper_hop": Sensor("speed", 2.0, "speed; 2 m/s, that of hopping"),
    "finger_spin": Sensor("hinge_velocity", 15.0, "velocity of the spinner; 15 rad/s, that of full reward"),
    "fish_upright": Sensor("upright", 1.0, "cosine to the vertical; 1, the margin"),
    "fish_swim": Sensor("upright", 1.0, "cosine to the vertical; 1, that of swimming upright"),
    "pendulum_swingup": Sensor(
        "pole_vertical", 1 - math.cos(math.radians(8)), "cosine to the vertical; 1 - cos 8°, the width of full reward"
    ),
    "quadruped_walk": Sensor("torso_upright", 1.0, "cosine to the vertical; 1, that of full reward"),
    "quadruped_escape": Sensor(
        "origin_distance", lambda physics: physics.model.hfield_size[0, 0], "distance of the origin; that of the edge"
    ),
    "quadruped_fetch": Sensor(
        "ball_to_target_distance", _size("site", "target"), "distance of ball and target; the target's radius"
    ),
    "dog_walk": Sensor("com_forward_velocity", 1.0, "forward speed; 1 m/s, that of walking"),
    "dog_trot": Sensor("com_forward_velocity", 3.0, "forward speed; 3 m/s, that of trotting"),
    "dog_run": Sensor("com_forward_velocity", 9.0, "forward speed; 9 m/s, that of running"),
    "dog_fetch": Sensor(
        "ball_to_target_distance", _size("geom", "target"), "distance of ball and target; the target's radius"
    ),
    "stacker_stack_2": Sensor(
        "site_distance",
        lambda physics: 2 * physics.named.model.geom_size["target", 0],
        "distances of boxes, hand and target; twice a box, the margin",
    ),
}
SENSORS |= {
    name: Sensor("cart_position", 2.0, "position of the cart; 2 m, the margin")
    for name in ("cartpole_balance", "cartpole_swingup", "cartpole_two_poles", "cartpole_three_poles")
}
SENSORS |= {
    name: Sensor("cart_position", 0.5, "position of the cart; 0.5 m, the width of full reward")
    for name in ("cartpole_balance_sparse", "cartpole_swingup_sparse")
}
SENSORS |= {
    name: Sensor("torso_height", 1.2, _height(1.2, "torso")) for name in ("walker_stand", "walker_walk", "walker_run")
}
SENSORS |= {
    name: Sensor("head_height", 1.4, _height(1.4, "head"))
    for name in (
        *("humanoid_stand", "humanoid_walk", "humanoid_run", "humanoid_run_pure_state"),
        *("humanoid_CMU_stand", "humanoid_CMU_walk", "humanoid_CMU_run"),
    )
}
SENSORS |= {
    name: Sensor("site_distance", 0.01, "distances of object, hand and target; 1 cm, the width of full reward")
    for name in ("manipulator_bring_ball", "manipulator_bring_peg", "manipulator_insert_ball", "manipulator_insert_peg")
}
SENSORS |= {
    name: Sensor("dist_to_target", _size("site", "target"), "distance of tip and target; the target's radius")
    for name in ("finger_turn_easy", "finger_turn_hard")
}
SENSORS |= {
    name: Sensor("mass_to_target_dist", _size("geom", "target"), "distance of mass and target; the target's radius")
    for name in ("point_mass_easy", "point_mass_hard")
}
SENSORS |= {
    name: Sensor("nose_to_target_dist", _size("geom", "target"), "distance of nose and target; the target's radius")
    for name in ("swimmer_swimmer6", "swimmer_swimmer15")
}
SENSORS |= {
    "reacher_hard": SENSORS["reacher_easy"],
    "acrobot_swingup_sparse": SENSORS["acrobot_swingup"],
    "quadruped_run": SENSORS["quadruped_walk"],
    "stacker_stack_4": SENSORS["stacker_stack_2"],
}

WITHOUT_SENSOR = {
    "ball_in_cup_catch": "its reward is binary: whether the ball is inside the cup",
    "dog_stand": "its reward reads heights, angles and forces of several parts at once",
    "lqr_lqr_2_1": "its reward is quadratic in all positions",
    "lqr_lqr_6_2": "its reward is quadratic in all positions",
}
"""tasks without a scalar sensor, and why"""
