"""The table of latents: what it refuses, its stages, and what priors and rewards of each preset can see."""

from dataclasses import replace

import pytest
import torch

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.config.choices import choices
from denoised_mdp.errors import UserError
from denoised_mdp.models.rssm import RSSM
from denoised_mdp.models.structure import LatentSpec, Table

X = LatentSpec("x", sees_action=True, seen_by_policy=True, free=True)
Y = LatentSpec("y")
C = LatentSpec("c", rewarded=False)
TINY = [
    "preset=none",
    "model.depth=2",
    "model.embed=12",
    "model.reward_hidden=7",
    "policy.hidden=8",
    "train.device=cpu",
]


def model_of(name: str):
    """The world model of a preset in float64, with small networks and the preset's own rows."""
    return build_agent(load_config([f"model={name}", *TINY]), 2).double().world_model


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([replace(X, parents=("c",)), C], "latent x has parent c, which must stand before it"),
        ([replace(X, parents=("x",))], "latent x has parent x"),
        ([X, replace(Y, parents=("w",))], "latent y has parent w"),
        ([X, replace(Y, parents=("x",)), C], "list latents of earlier stages first, not in the order x, y, c"),
        ([C, replace(X, parents=("c",))], "the policy sees x, which reads c: it must see c as well"),
        ([C, replace(X, reward_sees=("c",))], "the policy sees x, which reads c"),
        ([X, replace(Y, reward_sees=("w",))], "the reward of y reads w, which does not exist"),
        ([C, replace(Y, parents=("c", "c"))], "parents of latent y reads c twice"),
        ([replace(X, reward_sees=("x",))], "reward_sees of latent x reads x twice"),
        ([C, replace(Y, reward_sees=("c", "c"))], "reward_sees of latent y reads c twice"),
        ([replace(X, rewarded=False), Y], "must see a latent that is rewarded"),
        ([replace(X, seen_by_policy=False)], "must see a latent that is rewarded"),
        ([], "must see a latent that is rewarded"),
        ([X, replace(Y, name="encoder")], "cannot be called 'encoder'.* none of action, all, encoder, error"),
        ([X, replace(Y, name="y+z")], r"cannot be called 'y\+z'"),
        ([X, replace(Y, free=True, beta=0.5)], "x, y share the free nats and must have one beta"),
    ],
)
def test_a_table_that_cannot_work_is_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        Table(rows)


def test_stages_are_the_depth_in_the_graph_of_parents():
    rows = [X, Y, replace(C, parents=("x",)), replace(C, name="d", parents=("y",)), replace(C, name="e", parents="xd")]
    table = Table(rows)
    assert [[row.name for row in stage] for stage in table.stages] == [["x", "y"], ["c", "d"], ["e"]]
    assert table.names == ("x", "y", "c", "d", "e") and table.noise == ("y", "c", "d", "e")
    assert [row.name for row in table.seen] == [row.name for row in table.free] == ["x"]


def test_a_categorical_row_is_as_wide_as_its_classes():
    assert replace(X, state=5).width == 5
    assert replace(X, state=5, distribution="categorical", classes=3).width == 15


def reach_of_prior(model, target: str) -> set[str]:
    """What one transition of the prior of `target` reads, given this step's latents of its parents.

    "name": the latent's own belief and state before; "name now": this step's latent of a parent; "action".
    """
    rssm, rows = model.rssm, model.table.rows
    transition = rssm.transitions[target]

    def random(width):
        return torch.randn(3, width, dtype=torch.float64, requires_grad=True)

    now = {name: (random(row.belief), random(row.width)) for name, row in rows.items()}
    old, action = {name: (random(row.belief), random(row.width)) for name, row in rows.items()}, random(2)
    beliefs, states = ({name: pair[i] for name, pair in now.items()} for i in (0, 1))
    inputs = rssm._prior_inputs(rows[target], beliefs, states, old[target][1], action)
    mean = transition.distribution(transition(inputs, old[target][0])).mode()
    sources = {"action": [action]} | {name: [*pair] for name, pair in old.items()}
    sources |= {f"{name} now": [*pair] for name, pair in now.items()}
    tensors = [tensor for group in sources.values() for tensor in group]
    gradients = iter(torch.autograd.grad(mean.sum(), tensors, allow_unused=True))
    found = {name: [next(gradients) for _ in group] for name, group in sources.items()}
    assert all(bool(g.any()) for group in found.values() for g in group if g is not None)
    return {name for name, group in found.items() if any(g is not None for g in group)}


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("2b", {"x": {"x", "action"}, "y": {"y"}}),
        ("2c", {"x": {"x", "action"}, "y": {"y"}, "z": {"z", "action", "x now"}}),
        ("dreamer", {"x": {"x", "action"}}),
        ("confounder", {"c": {"c"}, "x": {"x", "action", "c now"}, "y": {"y", "c now"}}),
        (
            "four_blocks",
            {"y": {"y"}, "w": {"w"}, "x": {"x", "action", "y now"}, "z": {"z", "action", "x now", "y now"}},
        ),
    ],
)
def test_priors_of_the_presets(preset, expected):
    """Who influences whom, written out. Of a confounder: x and y never read each other, and c reads nothing else."""
    model = model_of(preset)
    assert {name: reach_of_prior(model, name) for name in model.table.names} == expected


@pytest.mark.parametrize("preset", ["confounder", "four_blocks"])
def test_what_the_policy_cannot_control_is_imagined_whatever_it_does(preset):
    """Imagined with other actions, c (in four blocks, y) is the same to the last bit; x, which reads it, is not."""
    model = model_of(preset)
    steady = {"confounder": "c", "four_blocks": "y"}[preset]
    mdp = model.mdp()
    begin = model.initial(4).select(model.table.seen).map(torch.randn_like)
    noise, pushes = mdp.draw_noise(5, 4, like=begin.belief), torch.randn(2, 5, 4, 2, dtype=torch.float64)

    def imagined(actions, begin):
        latent = begin
        for action, eps in zip(actions, noise, strict=True):
            latent = model.imagine_step(latent, action, eps)
        return latent

    one, other = (imagined(actions, begin) for actions in pushes)
    assert all(torch.equal(a, b) for a, b in zip(one[steady], other[steady], strict=True))
    assert not torch.equal(one["x"][0], other["x"][0])
    changed = imagined(pushes[0], begin.replace(**{steady: tuple(part + 1 for part in begin[steady])}))
    assert not torch.equal(one["x"][0], changed["x"][0])


@pytest.mark.parametrize(("preset", "parent"), [("confounder", "c"), ("four_blocks", "y")])
def test_what_reads_a_parent_is_imagined_from_the_parents_new_state(preset, parent):
    model = model_of(preset)
    before = model.initial(4).select(model.table.seen).map(torch.randn_like)
    action = torch.randn(4, 2, dtype=torch.float64)
    after = model.imagine_step(before, action, torch.randn_like(before.state))
    belief, state = before["x"]
    read = torch.cat((*after[parent], state, action), -1)
    torch.testing.assert_close(after["x"][0], model.rssm.transitions["x"](read, belief))


@pytest.mark.parametrize(
    ("preset", "expected"), [("confounder", {"x": {"c", "x"}, "y": {"y"}}), ("four_blocks", {"y": {"y"}, "x": {"x"}})]
)
def test_rewards_of_the_presets(preset, expected):
    """Each share of the reward reads what the table says; the policy's reward is the sum of the shares that it sees."""
    model = model_of(preset)
    latent = model.initial(4).map(lambda tensor: torch.randn_like(tensor).requires_grad_())
    shares, read = model.reward_shares(latent), {}
    for name, share in shares.items():
        gradient = torch.autograd.grad(share.sum(), latent.belief, retain_graph=True)[0]
        read[name] = {other for other, part in latent.layout.split_belief(gradient).items() if part.any()}
    assert read == expected
    seen = sum(share for name, share in shares.items() if model.table.rows[name].seen_by_policy)
    torch.testing.assert_close(model.seen_reward(latent.select(model.table.seen)), seen)


def test_every_preset_is_a_table():
    """A preset in configs/model is a YAML file and nothing else."""
    for name in choices("model"):
        model = model_of(name)
        assert model.table.seen and model.initial(1).layout.names == model.table.names


@pytest.mark.parametrize("name", ["half", "keys", "training"])
def test_a_latent_with_a_name_of_pytorchs_own_is_refused(name):
    with pytest.raises(UserError, match=f"cannot be called '{name}', which PyTorch uses"):
        RSSM(Table([replace(X, name=name)]), action_size=2, embed=8, norm="none")
