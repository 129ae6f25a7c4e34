"""Quasimetric reinforcement learning on the discretized MountainCar, where every distance is known.

    python scripts/reproduce/mountain_car.py            # train, then table and picture into results/mountain_car
    python scripts/reproduce/mountain_car.py --updates 50000 --seeds 0 1 2

Position and velocity take 160 values each. Data: 1,019 random episodes of at most 250 steps from uniform states. The
learned distance d is judged against breadth-first search: its rank correlation with the true number of steps, and its
mean absolute error in steps after division by 1 + eps. It is also judged by control: from each of the 25,600 states,
take the action whose next state has the smallest d to the goal. A score is 100 (R + 200) / (R* + 200), where R is minus
the mean number of steps to the goal, at most 200, and R* is that of the shortest paths.

The task's goal is easy: sign(velocity) scores 96.7. So score and rank correlation are also measured for nine other
goals, single states that count as reached within 13 x 13 cells.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from denoised_mdp.analysis.plots import INK, new_figure, plain_axes, save_figure
from denoised_mdp.analysis.qrl import QRL, learn_distance
from denoised_mdp.analysis.quasimetric import IQE, Euclid, relu_network
from denoised_mdp.analysis.ranks import rank_correlation
from denoised_mdp.progress import Phase, shown
from denoised_mdp.seeding import generator

CELLS = 160
LOW, HIGH = np.array([-1.2, -0.07]), np.array([0.6, 0.07])
EPISODES, STEPS, HORIZON = 1019, 250, 200
NEAR = 6
"""cells to each side of a single goal that count as reached"""
GOAL_SHARE = 0.05
"""share of a batch's goals that are the task's goal, and of its steps that lead into it"""
EPS, BATCH, WIDTHS = 0.25, 256, (3, 256, 256, 256, 256)
ARMS = {"quasimetric": lambda: IQE(32, 8, "maxmean"), "symmetric": Euclid}
COLUMNS = ("arm", "seed", "updates", "goal", "score", "rank_correlation", "error", "one_step")


def state_of(cell: np.ndarray) -> np.ndarray:
    """Cells, two indices [..., 2] -> position and velocity [..., 2]."""
    return LOW + (HIGH - LOW) * cell / (CELLS - 1)


def number_of(state: np.ndarray) -> np.ndarray:
    """Position and velocity [..., 2] -> the number of the nearest cell [...]; position comes first."""
    cell = np.rint((state - LOW) / (HIGH - LOW) * (CELLS - 1)).astype(int)
    return cell[..., 0] * CELLS + cell[..., 1]


def moved(state: np.ndarray, action: int) -> np.ndarray:
    """One step of MountainCar [..., 2]; actions 0, 1, 2 push left, not at all, and right."""
    position, velocity = state[..., 0], state[..., 1]
    velocity = (velocity + 0.001 * (action - 1) - 0.0025 * np.cos(3 * position)).clip(LOW[1], HIGH[1])
    position = (position + velocity).clip(LOW[0], HIGH[0])
    velocity = np.where((position <= LOW[0]) & (velocity < 0), 0, velocity)  # the wall on the left
    return np.stack([position, velocity], -1)


CELL = np.stack(np.divmod(np.arange(CELLS**2), CELLS), -1)
STATE = state_of(CELL)
NEXT = np.stack([number_of(moved(STATE, action)) for action in range(3)], 1)
"""[25,600, 3]: the state after each action"""
SPOTS = [row * CELLS + column for row in (40, 80, 120) for column in (40, 80, 120)]
GOALS = [(STATE[:, 0] >= 0.5) & (STATE[:, 1] >= 0), *((np.abs(CELL - CELL[spot]) <= NEAR).all(1) for spot in SPOTS)]
"""which states count as the task's goal, and which as each of the nine others, [25,600] each"""


def steps_to(goal: np.ndarray, following: np.ndarray = NEXT) -> np.ndarray:
    """The least number of steps from every state to a set of states, bool [n]; infinite where there is no way."""
    steps, following = np.where(goal, 0.0, np.inf), following.T.copy()  # contiguous rows: a faster minimum
    while True:
        better = np.minimum(steps, steps[following].min(0) + 1)
        if np.array_equal(better, steps):
            return steps
        steps = better


def nearest(steps: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The policy that takes the action whose next state is nearest, by steps [n]."""
    best = steps[NEXT].argmin(1)
    return lambda at: best[at]


def sign_of_velocity(at: np.ndarray) -> np.ndarray:
    """The policy that always pushes in the direction of motion."""
    return np.where(STATE[at, 1] >= 0, 2, 0)


def steps_taken(policy: Callable[[np.ndarray], np.ndarray], goal: np.ndarray) -> np.ndarray:
    """Steps until the goal from every state, at most `HORIZON`; policy: states -> actions."""
    at, taken = np.arange(len(goal)), np.zeros(len(goal))
    done = goal
    for _ in range(HORIZON):
        taken += ~done
        at = np.where(done, at, NEXT[at, policy(at)])
        done = done | goal[at]
    return taken


def score(taken: np.ndarray, goal: np.ndarray) -> float:
    """Steps from every state -> 100 for the shortest paths, 0 for never arriving."""
    most, least = (HORIZON - np.minimum(steps, HORIZON).mean() for steps in (steps_to(goal), taken))
    return 100 * least / most


def random_transitions(random: np.random.Generator) -> np.ndarray:
    """States before and after every step of the random episodes, int [N, 2]; an episode ends in the task's goal."""
    at, done, rows = random.integers(CELLS**2, size=EPISODES), np.zeros(EPISODES, bool), []
    for _ in range(STEPS):
        done |= GOALS[0][at]
        after = NEXT[at, random.integers(3, size=EPISODES)]
        rows.append(np.stack([at, after], 1)[~done])
        at = after
    return np.concatenate(rows)


def within(transitions: np.ndarray) -> np.ndarray:
    """The least number of steps from every state to the task's goal, using only steps that are in the data."""
    own = np.arange(CELLS**2)[:, None]
    seen = np.isin(own * CELLS**2 + NEXT, transitions[:, 0] * CELLS**2 + transitions[:, 1])
    return steps_to(GOALS[0], np.where(seen, NEXT, own))


def inputs(states: np.ndarray) -> torch.Tensor:
    """Numbers of states [N] -> what the networks see [N, 3]: position and velocity in [-1, 1], and zero."""
    scaled = 2 * CELL[states] / (CELLS - 1) - 1
    return torch.as_tensor(np.pad(scaled, ((0, 0), (0, 1))), dtype=torch.float32)


TASK_GOAL = torch.tensor([2 * (0.5 - LOW[0]) / (HIGH[0] - LOW[0]) - 1, 0.0, 1.0], dtype=torch.float32)
"""the task's goal as an input: position 0.5, velocity 0, and a mark that it stands for a set"""


class Sampler:
    """Batches of (state, following state, goal), each [batch, 3].

    A share of the rows, `GOAL_SHARE`, steps from a state in the task's goal to the goal itself, and as many rows have
    it as their goal. The other goals are random following states.
    """

    def __init__(self, transitions: np.ndarray, batch: int, random: np.random.Generator):
        self.transitions, self.batch, self.random = transitions, batch, random
        self.arrivals = transitions[GOALS[0][transitions[:, 1]], 1]

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw a batch."""
        count = round(GOAL_SHARE * self.batch)
        before, after = self.transitions[self.random.integers(len(self.transitions), size=self.batch)].T
        state, following, goal = inputs(before), inputs(after), inputs(np.roll(after, 1))
        state[:count], following[:count] = inputs(self.random.choice(self.arrivals, count)), TASK_GOAL
        goal[-count:] = TASK_GOAL
        return state, following, goal


def learn(arm: str, seed: int, updates: int, transitions: np.ndarray) -> np.ndarray:
    """Learned distances [11, 25,600] from every state to the ten goals and, last, to the state after action 2."""
    torch.manual_seed(seed)
    encoder, head, objective = relu_network(*WIDTHS), ARMS[arm](), QRL(500.0, 0.01, EPS)
    with Phase(f"{arm}, seed {seed}", updates, "updates") as phase:
        sampler = Sampler(transitions, BATCH, generator(seed, "batches"))
        learn_distance(encoder, head, objective, sampler, updates, multiplier_lr=0.3, phase=phase)
    with torch.no_grad():
        at = encoder(inputs(np.arange(CELLS**2)))  # [25,600, F]
        ends = [encoder(TASK_GOAL), *at[SPOTS], at[NEXT[:, 2]]]
        return torch.stack([head(at, end) for end in ends]).numpy()


def judge(learned: np.ndarray) -> list[dict]:
    """A row for each goal from learned distances [11, 25,600]; "error" is for the task's goal only.

    For the nine others, d is to a single state, the truth to its 13 x 13 neighbourhood: only ranks are comparable.
    """
    rows = []
    for number, (goal, d) in enumerate(zip(GOALS, learned[:-1] / (1 + EPS), strict=True)):
        truth = steps_to(goal) + (number == 0)  # one more step leads into the marked goal
        known = np.isfinite(truth)
        rows.append(
            {
                "goal": number or "task",
                "score": round(score(steps_taken(nearest(d), goal), goal), 2),
                "rank_correlation": round(rank_correlation(d[known], truth[known]), 3),
                "error": "" if number else round(float(np.abs(d - truth)[known].mean()), 2),
                "one_step": round(float(learned[-1].mean()), 3),
            }
        )
    return rows


def table(rows: list[dict], transitions: np.ndarray) -> str:
    """A Markdown table: one line per arm with means over seeds, and references."""

    def mean(rows: list[dict], name: str, digits: int) -> str:
        return f"{statistics.mean(float(row[name]) for row in rows):.{digits}f}"

    head = "score, task's goal | nine others | rank correlation, task's goal | nine others | error, steps | one step"
    lines = [f"| | {head} |", "|---|---|---|---|---|---|---|"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        task, others = ([row for row in own if (row["goal"] == "task") == wanted] for wanted in (True, False))
        cells = [
            mean(part, name, digits)
            for name, digits in (("score", 1), ("rank_correlation", 2))
            for part in (task, others)
        ]
        cells += [mean(task, "error", 1), mean(task, "one_step", 2)]
        seeds = sorted({row["seed"] for row in own})
        lines.append(f"| {arm}, {own[0]['updates']:,} updates, seeds {seeds} | {' | '.join(cells)} |")
    scores = [score(steps_taken(sign_of_velocity, goal), goal) for goal in GOALS]
    lines.append(f"| sign(velocity) | {scores[0]:.1f} | {statistics.mean(scores[1:]):.1f} | - | - | - | - |")
    reached = score(within(transitions), GOALS[0])
    lines.append(f"| shortest paths within the data (seed 0) | {reached:.1f} | - | - | - | - | - |")
    return "\n".join(lines) + "\n"


def draw(learned: dict[str, np.ndarray], path: Path) -> None:
    """Draw maps of the steps to two goals: the truth, and what each arm has learned [11, 25,600]."""
    figure = new_figure(3.1 * (1 + len(learned)), 5.2)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(2, 1 + len(learned), sharex=True, sharey=True)
    for row, (number, name) in zip(panels, ((0, "the task's goal"), (5, "the cross")), strict=True):
        truth = steps_to(GOALS[number])
        maps = {"truth": np.where(np.isfinite(truth), truth, np.nan)}
        maps |= {arm: d[number] / (1 + EPS) for arm, d in learned.items()}
        for axis, (title, steps) in zip(row, maps.items(), strict=True):
            extent = (LOW[0], HIGH[0], LOW[1], HIGH[1])
            field = axis.imshow(
                steps.reshape(CELLS, CELLS).T, origin="lower", extent=extent, aspect="auto", vmin=0, vmax=110
            )
            plain_axes(axis, 8)
            axis.grid(False)
            axis.set_title(f"{title}: steps to {name}", fontsize=8.5, color=INK)
            if number:
                axis.plot(*STATE[SPOTS[number - 1]], "x", color="white", markersize=7)
    figure.colorbar(field, ax=panels, label="steps (yellow: 110 or more; white: no way)", shrink=0.6)
    for axis in panels[-1]:
        axis.set_xlabel("position")
    for axis in panels[:, 0]:
        axis.set_ylabel("velocity")
    save_figure(figure, path)


def write(rows: list[dict], learned: dict[str, np.ndarray], out: Path) -> str:
    """Write distances.csv, table.md and distances.png; return the table."""
    with (out / "distances.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows, random_transitions(generator(0, "episodes")))
    (out / "table.md").write_text(text)
    draw(learned, out / "distances.png")
    return text


def main() -> None:
    """Train every arm, then write table and picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("results/mountain_car"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows, learned = [], {}
    with shown():
        for seed in options.seeds:
            transitions = random_transitions(generator(seed, "episodes"))
            for arm in options.arms:
                found = learn(arm, seed, options.updates, transitions)
                learned.setdefault(arm, found)  # the picture shows the first seed
                rows += [{"arm": arm, "seed": seed, "updates": options.updates, **row} for row in judge(found)]
    print(write(rows, learned, options.out))


if __name__ == "__main__":
    main()
