"""A tiny agent with a batch and noise, and how its numbers are compared with the oracle's."""

import oracle
import torch
from conftest import configured

from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.config.schema import BackpropConfig, SACConfig
from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.losses import KLWeights
from denoised_mdp.models.mdp import PolicyBatch
from denoised_mdp.models.structure import LatentSpec, Table
from denoised_mdp.options import arguments
from denoised_mdp.policies import BackpropPolicy

RTOL = 1e-9
CLIPPED_RTOL = 1e-6  # PyTorch clips by bound / (norm + 1e-6)

X, Y, Z = (5, 3), (6, 4), (7, 3)
BETA_Y, BETA_Z = 0.25, 0.5
SIGNAL = LatentSpec("x", *X, sees_action=True, seen_by_policy=True, free=True)
NOISE = LatentSpec("y", *Y, beta=BETA_Y)
STRUCTURES = {
    "2b": (SIGNAL, NOISE),
    "2c": (SIGNAL, NOISE, LatentSpec("z", *Z, sees_action=True, parents=("x", "y"), rewarded=False, beta=BETA_Z)),
    "2c-z-without-y": (
        SIGNAL,
        NOISE,
        LatentSpec("z", *Z, sees_action=True, parents=("x",), rewarded=False, beta=BETA_Z),
    ),
    "dreamer": (SIGNAL,),
}
DEPTHS = {64: 2, 96: 5}  # the package evaluates transposed convolutions to few and to many channels differently
T, B, ACTIONS, HORIZON = 4, 3, 2, 4


def agree(actual, expected, what, rtol=RTOL):
    """Equal up to `rtol` of the largest element; and not trivially, since an all-zero tensor tells nothing."""
    actual, expected = actual.detach(), expected.detach()
    assert actual.shape == expected.shape, what
    scale, error = expected.abs().max(), (actual - expected).abs().max()
    assert scale > 0, f"{what} is zero"
    assert error <= rtol * scale, f"{what}: {error:.1e} off at scale {scale:.1e}"


def agree_all(actual, expected, what, rtol=RTOL):
    """The same for all tensors of two dictionaries."""
    assert actual.keys() == expected.keys(), f"{what} others: {sorted(actual.keys() ^ expected.keys())}"
    for key in expected:
        agree(actual[key], expected[key], f"{what} {key}", rtol)


def weights(module):
    """A copy of a state_dict, as leaves that the oracle can differentiate."""
    return {name: value.detach().clone().requires_grad_() for name, value in module.state_dict().items()}


def change(after, before):
    """What a step did, which shows errors that the weights' own size would hide."""
    return {name: after[name] - before[name] for name in after if not torch.equal(after[name], before[name])}


def parameter_gradients(module):
    """{name: gradient} of those parameters that have one."""
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


class Case:
    """A tiny agent with lively weights, a batch in which an episode begins inside a segment, and noise.

    ends: two rows are terminal, and the model predicts so.
    """

    def __init__(
        self,
        name="2b",
        size=64,
        policy=BackpropPolicy,
        strategy="A",
        clamped=0.5,
        model_eps=1e-7,
        returns=1.0,
        ends=False,
        **options,
    ):
        torch.manual_seed(0)
        self.z_prior_uses_y = name != "2c-z-without-y"
        table = Table(STRUCTURES[name])
        sizes = {"size": size, "depth": DEPTHS[size], "embed": 16, "hidden": 8}
        self.model = configured(DenoisedModel, table, ACTIONS, **sizes, continuation=ends, eps=model_eps)
        if policy is BackpropPolicy:
            options["horizon"] = HORIZON
        kind = BackpropConfig if policy is BackpropPolicy else SACConfig
        mdp = self.model.mdp()
        policy = policy(mdp, **arguments(kind(hidden=8, **options)))
        self.agent = WorldModelAgent(self.model, policy, mdp).double()
        self.policy, self.mdp, self.size, self.strategy = policy, self.agent.mdp, size, strategy
        with torch.no_grad():  # default weights are so small that every KL is nearly 0 and every net nearly linear
            for parameter in self.agent.parameters():
                parameter += 0.1 * torch.randn_like(parameter) + 0.5 * parameter
            for posterior in self.model.rssm.posteriors:
                posterior.net.output.weight *= 2.0
            for name, parameter in self.agent.named_parameters():
                if "output.weight" in name and any(part in name for part in (".rewards.x", ".value", ".nets.")):
                    parameter *= returns  # large rewards and values: policy gradients far above the clip
        is_first = torch.zeros(T, B, dtype=torch.bool)
        is_first[0, 0] = is_first[2, 1] = True
        is_terminal = torch.zeros(T, B, dtype=torch.bool)
        is_terminal[1, 1] = is_terminal[3, 2] = ends
        self.batch = {
            "observation": (torch.rand(T, B, size, size, 3) * torch.rand(T, B, 1, 1, 1) * 256).to(torch.uint8),
            "action": torch.rand(T, B, ACTIONS).double() * 2 - 1,
            "reward": torch.randn(T, B).double(),
            "is_first": is_first,
            "is_terminal": is_terminal,
        }
        self.noise = torch.randn(T, B, self.model.rssm.layout.state_size).double()
        self.w, self.p = weights(self.model), weights(policy)
        self.kl = {"alpha": 2.0, "free_nats": 0.0}
        # Half of the elements of KL_x below the free nats, half above: a wrong or missing clamp shows.
        self.kl["free_nats"] = float(self.oracle_loss()["kl"]["x"].detach().quantile(clamped))
        self.model.kl = configured(KLWeights, **self.kl, free_nats_strategy=strategy)

    def oracle_loss(self, w=None, noise=None):
        """The oracle's account of the batch."""
        return oracle.model_loss(
            w or self.w,
            self.batch,
            self.noise if noise is None else noise,
            size=self.size,
            strategy=self.strategy,
            z_prior_uses_y=self.z_prior_uses_y,
            beta_y=BETA_Y,
            beta_z=BETA_Z,
            **self.kl,
        )

    def x_latents(self):
        """The oracle's posterior (h^x, x) as a batch for a policy."""
        x = self.oracle_loss()["latent"]["x"]
        h, s = x["h"].detach(), x["s"].detach()
        reward = oracle.reward(self.w, "x", h, s).detach()
        return PolicyBatch(h, s, self.batch["action"], reward, self.batch["is_terminal"], self.batch["is_first"])
