"""Small errors planted in the package, one at a time: the oracle and the golden numbers must notice every one.

Each row edits the source of one function. When that function is rewritten, the edit no longer applies and the
test says so: plant the same error in the new text.
"""

import __future__

import importlib
import inspect
import sys
import textwrap

import pytest
from oracle_case import Case
from test_golden import STRUCTURES, check_predictions
from test_oracle import CLIPPED, check_backprop, check_latents, check_loss, check_model_step, check_sac, check_updates

from denoised_mdp.policies import BackpropPolicy, SACPolicy


def plant(monkeypatch, where, right, wrong):
    """Replace the text `right` by `wrong` in the function `where` ("module:function", "module:Class.method")."""
    module_name, path = where.split(":")
    module = importlib.import_module(f"denoised_mdp.{module_name}")
    *owners, name = path.split(".")
    owner = getattr(module, owners[0]) if owners else module
    original = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(original))
    # Compiled outside of its class, such a function always raises: a test would notice even no error at all.
    assert "super()" not in source, f"{where} calls super(), which has no class here: plant a value that it reads"
    assert source.count(right) == 1, f"{where} was rewritten: plant this error in its new text instead of {right!r}"
    edited, names = source.replace(right, wrong), {}
    exec(compile(edited, where, "exec", __future__.annotations.compiler_flag), vars(module), names)
    importers = [] if owners else [m for m in list(sys.modules.values()) if vars(m).get(name) is original]
    for holder in importers or [owner]:  # every module that imported a function by name
        monkeypatch.setattr(holder, name, names[name])


STEP = "models.rssm:RSSM._observe_step"
INPUTS = "models.rssm:RSSM._prior_inputs"
STAGE = "models.rssm:PosteriorStage"
FILTER = "models.rssm:RSSM.observe"
KL = "models.losses:KLWeights.weighted"
LATENT = "models.latent:Latent.features"
SUB_PIXEL = "models.networks:_SubPixel.backward"
KLS = "models.losses:kl_per_latent"
LOSS = "models.denoised:DenoisedModel.loss"
ENCODER, DECODER = "models.vision:Encoder.forward", "models.vision:Decoder.forward"
PER_ROW = "together.clamp(min=self.free_nats).mean()"

LATENT_ERRORS = {  # name: (structure, function, right, wrong)
    "swapped-x-inputs": ("2b", INPUTS, "torch.cat(inputs, -1)", "torch.cat(inputs[::-1], -1)"),
    "swapped-z-inputs": ("2c", INPUTS, "in parents[1:]", "in map(reversed, parents[1:])"),
    "swapped-z-parent": ("2c", INPUTS, "(belief[name], state[name])", "(state[name], belief[name])"),
    "z-sees-old-x": (
        "2c",
        STEP,
        "new_belief, new_state, old_state[row.name]",
        "new_belief, old_state, old_state[row.name]",
    ),
    "swapped-posterior": ("2c", STEP, "(old_belief[name], old_state[name])", "(old_state[name], old_belief[name])"),
    "posterior-forgets-parents": ("2c", STEP, "for name in new_state for", "for name in reversed(new_state) for"),
    "belief-survives-reset": ("2b", FILTER, "belief * kept", "belief"),
    "state-survives-reset": ("2b", FILTER, "state * kept", "state"),
    "action-survives-reset": ("2b", FILTER, "(action * keep)", "action"),
    "no-minimal-std": ("2b", "models.distributions:Gaussian.from_raw", " + MIN_STD", ""),
    "reset-of-the-state-itself": ("dreamer", "models.gru:_Gates.forward", "hidden[:, 2 * size :]", "h"),
    "update-mirrored": ("dreamer", "models.gru:_Gates.forward", "lerp(new, h,", "lerp(h, new,"),
    "relu-before-gru": ("dreamer", "models.rssm:Transition.forward", "activate(layer", "F.relu(layer"),
    "relu-in-posterior": ("dreamer", f"{STAGE}.forward", "self.net.activations[0](", "F.relu("),
    "relu-in-mlp": ("dreamer", "models.networks:MLP.forward", "activate(dense", "F.relu(dense"),
    "kl-reversed": ("2b", KLS, "posterior[name].kl(prior[name])", "prior[name].kl(posterior[name])"),
    "images-not-centred": ("2b", "models.networks:images_to_float", ".sub_(0.5)", ""),
    "kernel-not-flipped": ("2b", "models.networks:_SubPixel.forward", ".flip(2, 4)", ""),
    "elu-in-decoder": ("2b", "models.networks:_BiasReLU.forward", "lines.relu_()", "F.elu(lines)"),
    "decoder-begins-linear": ("2b", DECODER, "F.relu(x, inplace=True)", "x"),
    "decoder-ends-in-relu": ("2b", DECODER, "(x, self.convolutions[-1])", "(x, self.convolutions[-1], relu=True)"),
    "decoder-elu-first": ("2b", DECODER, "F.relu(x, ", "F.elu(x, "),
    "encoder-flattens-before-relu": ("2b", ENCODER, "relu=not self.norms", "relu=False"),
    "encoder-flattens-pixels-first": ("2b", ENCODER, "x.flatten(1)", "x.permute(0, 2, 3, 1).flatten(1)"),
    "encoder-ends-in-relu": ("2b", ENCODER, "self.output, x.dtype)", "self.output, x.dtype).relu()"),
    "states-before-beliefs": ("2b", LATENT, "(self.belief, self.state)", "(self.state, self.belief)"),
}

LOSS_ERRORS = {  # name: (structure, strategy, function, right, wrong)
    "no-free-nats-A": ("2b", "A", KL, PER_ROW, "together.mean()"),
    "no-free-nats-B": ("2b", "B", KL, PER_ROW, "together.mean()"),
    "clamp-after-mean": ("2b", "A", KL, PER_ROW, "together.mean().clamp(min=self.free_nats)"),
    "regularizer-clamped": ("2b", "B", KL, "share) * together", "share) * together.clamp(min=self.free_nats)"),
    "y-gets-free-nats": ("2b", "A", KL, "kl[row.name].mean()", "kl[row.name].clamp(min=self.free_nats).mean()"),
    "betas-swapped": ("2c", "A", KL, "row.beta * kl", "(BETAS - row.beta) * kl".replace("BETAS", "0.75")),
    "dreamer-split": ("dreamer", "B", KL, "noise[0].beta if", "0.25 if not noise or"),
    "no-alpha": ("2b", "A", KL, "self.alpha * total", "total"),
    "kl-averaged": ("2b", "A", KLS, ".sum(-1)", ".mean(-1)"),
    "prior-gets-no-kl-gradient": (
        "2b",
        "A",
        LOSS,
        "(posterior, prior, ",
        "(posterior, {k: p.map(torch.detach) for k, p in prior.items()}, ",
    ),
    "z-enters-reward": (
        "2c",
        "A",
        LOSS,
        "sum(shares.values())",
        'sum(shares.values()) + 0.01 * latent["z"][1].sum(-1)',
    ),
    "mean-over-pixels": ("2b", "A", "models.losses:_SquaredError.forward", "/ len(image)", "/ image.numel()"),
    "image-gradient-doubled": ("2b", "A", "models.losses:_SquaredError.backward", "mul_(gradient", "mul_(2 * gradient"),
    "relu-gradient-missing": (
        "2b",
        "A",
        "models.networks:_BiasReLU.backward",
        "for y in ctx.saved_tensors",
        "for y in ctx.saved_tensors[1:]",
    ),
    "reset-gradient": ("2b", "A", "models.gru:_Gates.backward", "to_new * reset", "to_new"),
    "update-gradient": ("2b", "A", "models.gru:_Gates.backward", "(h - new)", "(new - h)"),
    "deconvolution-gradient": ("2b", "A", SUB_PIXEL, "gradients(gradient", "gradients(gradient.mT"),
}

RETURNS = "policies.imagination:lambda_returns"
BACKPROP_ERRORS = {  # name: (function, right, wrong)
    "swapped-dream-inputs": (INPUTS, "torch.cat(inputs, -1)", "torch.cat(inputs[::-1], -1)"),
    "actor-input-attached": ("policies.imagination:ImaginingPolicy.imagine", "features[-1].detach()", "features[-1]"),
    "discount-power": ("policies.backprop:BackpropPolicy.losses", "arange(len(returns)", "arange(1, len(returns) + 1"),
    "value-of-same-step": (RETURNS, "value[t + 1]", "value[t]"),
    "reward-of-next-step": (RETURNS, "reward[t]", "reward[t + 1]"),
    "lambda-mirrored": (
        RETURNS,
        "(1.0 - lambda_) * value[t + 1] + lambda_ *",
        "lambda_ * value[t + 1] + (1.0 - lambda_) *",
    ),
    "unbounded-mean": ("policies.actor:Actor.forward", "MEAN_SCALE * torch.tanh(mean / MEAN_SCALE)", "mean"),
    "no-minimal-std": ("policies.actor:Actor.forward", " + self.min_std", ""),
}

CRITIC = "policies.sac:SACPolicy.critic_loss"
SOFT = "policies.actor:Actor.soft_value"
SAC = "policies.sac:SACPolicy.update"
SAC_ERRORS = {  # name: (function, right, wrong)
    "log-prob-of-another-action": (SOFT, "* log_prob,", "* self.sample_with_log_prob(features, -noise)[1],"),
    "value-of-old-latent": (CRITIC, "self.actor.soft_value(following", "self.actor.soft_value(features[:-1]"),
    "action-of-row-before": (CRITIC, "batch.action[1:]", "batch.action[:-1]"),
    "reward-of-row-before": (CRITIC, "batch.reward[1:]", "batch.reward[:-1]"),
    "steps-into-first-rows": ("models.mdp:PolicyBatch.steps", "(~self.is_first[1:])", "(self.is_first[1:] | True)"),
    "steps-from-first-rows-left-out": ("models.mdp:PolicyBatch.steps", "is_first[1:]", "is_first[:-1]"),
    "mean-over-all-steps": ("models.mdp:PolicyBatch.steps", "within.sum()", "torch.ones_like(within).sum()"),
    "no-target-nets": (CRITIC, "self.targets", "self.critics"),
    "mean-of-critics": (SOFT, ".amin(0)", ".mean(0)"),
    "larger-critic": (SOFT, ".amin(0)", ".amax(0)"),
    "squashing-ignored": ("policies.actor:Actor.log_prob", "(gaussian - squash)", "gaussian"),
    "entropy-sign": ("policies.sac:SACPolicy.temperature_loss", "+ self.target_entropy", "- self.target_entropy"),
    "temperature-itself": ("policies.sac:SACPolicy.temperature_loss", "_temperature *", "_temperature.exp() *"),
    "targets-in-actor-loss": ("policies.sac:SACPolicy.actor_loss", "self.critics", "self.targets"),
    "tau-mirrored": (SAC, "self.critics, self.tau)", "self.critics, 1 - self.tau)"),
}

ACTING = "agents.world_model_agent:WorldModelAgent.update_eagerly"
HEAD = "models.base:WorldModel.continuation_nll"
PREDICTED = "models.base:WorldModel.seen_continuation"
BACKPROP = "policies.backprop:BackpropPolicy.losses"
ENDS_ERRORS = {  # name: (check, policy, function, right, wrong)
    "ends-for-continuations": (check_loss, BackpropPolicy, HEAD, "(~is_terminal)", "is_terminal"),
    "head-of-all-latents-detached": (check_loss, BackpropPolicy, HEAD, ".features())", ".features().detach())"),
    "head-not-in-the-loss": (check_loss, BackpropPolicy, LOSS, "weighted_kl + sum(ends.values())", "weighted_kl"),
    "logits-for-probabilities": (check_backprop, BackpropPolicy, PREDICTED, ".sigmoid()", ""),
    "head-forgotten-by-the-mdp": (
        check_updates,
        BackpropPolicy,
        "models.base:WorldModel.mdp",
        "is None else",
        "is not None else",
    ),
    "continuation-of-the-next": (check_backprop, BackpropPolicy, RETURNS, "continuation[t] *", "continuation[t + 1] *"),
    "no-end-to-returns": (check_backprop, BackpropPolicy, RETURNS, "continuation[t] *", "1 *"),
    "starts-all-alive": (check_backprop, BackpropPolicy, BACKPROP, "(start,", "(start * 0 + 1,"),
    "weights-not-shifted": (check_backprop, BackpropPolicy, BACKPROP, "continuation[:-2]", "continuation[1:-1]"),
    "weights-attached": (check_backprop, BackpropPolicy, BACKPROP, "continuation[:-2].detach()", "continuation[:-2]"),
    "weights-of-one-step": (check_backprop, BackpropPolicy, BACKPROP, ".cumprod(0)", ""),
    "bootstraps-from-the-dead": (check_sac, SACPolicy, CRITIC, "batch.continues[1:] *", ""),
    "end-of-the-row-before": (check_sac, SACPolicy, CRITIC, "batch.continues[1:]", "batch.continues[:-1]"),
    "flags-forgotten": (
        check_updates,
        SACPolicy,
        "agents.world_model_agent:WorldModelAgent.policy_batch",
        'batch["is_terminal"]',
        'batch["is_terminal"] & False',
    ),
}

UPDATE = "models.denoised:DenoisedModel.update"
UPDATE_ERRORS = {  # name: (policy, function, right, wrong)
    "latents-recomputed": (BackpropPolicy, UPDATE, "latent.map", "self.loss(**batch, noise=noise)[1].map"),
    "latents-of-another-noise": (BackpropPolicy, UPDATE, "generator=generator", "generator=None"),
    "no-clip": (BackpropPolicy, "optim:clipped_step", 'float("inf") if clip is None else clip', 'float("inf")'),
    "dreams-in-the-model-of-before": (
        BackpropPolicy,
        ACTING,
        "self.world_model.update(batch, self.random)",
        '[setattr(self.mdp, "_reward", __import__("copy").deepcopy(self.world_model).seen_reward), '
        "self.world_model.update(batch, self.random)][1]",
    ),
    "reward-of-the-model-after": (SACPolicy, UPDATE, "reward.detach()", 'self.reward_shares(latent)["x"].detach()'),
    "reward-of-y-too": (SACPolicy, UPDATE, "reward.detach()", "sum(shares.values()).detach()"),
}


def rows(table):
    """The rows of a table as parameters of a test."""
    return [pytest.param(*row, id=name) for name, row in table.items()]


def test_no_error_is_planted_where_any_would_show(monkeypatch):
    with pytest.raises(AssertionError, match=r"calls super\(\)"):
        plant(monkeypatch, "agents.curl:CURL.add_optimizers", "contrastive_lr", "contrastive_lr")


@pytest.mark.parametrize(("name", "where", "right", "wrong"), rows(LATENT_ERRORS))
def test_errors_in_the_latents_show(monkeypatch, name, where, right, wrong):
    plant(monkeypatch, where, right, wrong)
    case = Case(name)
    with pytest.raises(AssertionError):
        check_latents(case)
    if name in STRUCTURES and wrong != "action":  # first rows of the golden files have no action
        with pytest.raises(AssertionError):
            check_predictions(name)


@pytest.mark.parametrize(("name", "strategy", "where", "right", "wrong"), rows(LOSS_ERRORS))
def test_errors_in_the_loss_show(monkeypatch, name, strategy, where, right, wrong):
    plant(monkeypatch, where, right, wrong)
    case = Case(name, strategy=strategy)
    with pytest.raises(AssertionError):
        check_loss(case)


@pytest.mark.parametrize(("where", "right", "wrong"), rows(BACKPROP_ERRORS))
def test_errors_in_backpropagation_show(monkeypatch, where, right, wrong):
    plant(monkeypatch, where, right, wrong)
    case = Case(clip=None)
    with pytest.raises(AssertionError):
        check_backprop(case)


@pytest.mark.parametrize(("where", "right", "wrong"), rows(SAC_ERRORS))
def test_errors_in_soft_actor_critic_show(monkeypatch, where, right, wrong):
    plant(monkeypatch, where, right, wrong)
    case = Case(policy=SACPolicy)
    with pytest.raises(AssertionError):
        check_sac(case)


@pytest.mark.parametrize(("check", "policy", "where", "right", "wrong"), rows(ENDS_ERRORS))
def test_errors_about_terminations_show(monkeypatch, check, policy, where, right, wrong):
    plant(monkeypatch, where, right, wrong)
    case = Case(policy=policy, ends=True, **({"clip": None} if check is check_backprop else {}))
    with pytest.raises(AssertionError):
        check(case)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [('["critics"], None', '["critics"], self.actor_clip'), ('["actor"], self.actor_clip', '["actor"], None')],
    ids=["critics-clipped", "actor-not-clipped"],
)
def test_a_clip_of_another_net_than_the_actor_shows(monkeypatch, right, wrong):
    plant(monkeypatch, SAC, right, wrong)
    case = Case(policy=SACPolicy, actor_clip=1.0, **CLIPPED)
    with pytest.raises(AssertionError):
        check_sac(case)


@pytest.mark.parametrize(("policy", "where", "right", "wrong"), rows(UPDATE_ERRORS))
def test_errors_in_updates_show(monkeypatch, policy, where, right, wrong):
    plant(monkeypatch, where, right, wrong)
    case = Case(policy=policy)
    with pytest.raises(AssertionError):
        check_updates(case)


def test_a_missing_clip_shows(monkeypatch):
    plant(monkeypatch, "optim:clipped_step", 'float("inf") if clip is None else clip', 'float("inf")')
    with pytest.raises(AssertionError, match="step of"):
        check_model_step(Case(model_eps=0.1))
