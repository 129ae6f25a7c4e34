"""Small errors planted in pixel SAC, its transitions and CURL: a named test must notice each."""

import pytest
import test_curl
import test_pixel_sac
import test_transitions
from test_oracle_sensitivity import plant

from denoised_mdp.agents import dbc

CRITIC, ACTOR = "agents.pixel_sac:PixelSAC.critic_loss", "agents.pixel_sac:PixelSAC.actor_loss"
UPDATE, TRANSITIONS = "agents.pixel_sac:PixelSAC.update_eagerly", "agents.transitions:make_transitions"
STACK, LOGITS = "models.frames:stack_frames", "agents.curl:CURL.logits"
BELLMAN = test_pixel_sac.test_the_critic_loss_is_the_soft_bellman_error
ROUTES = test_pixel_sac.test_the_critics_teach_the_encoder_and_the_actor_does_not
DELAY = test_pixel_sac.test_actor_temperature_and_targets_move_in_every_second_update
OPTIMIZERS = test_pixel_sac.test_optimizers_are_those_of_the_publications
WRITTEN_OUT = test_pixel_sac.test_encoder_actor_and_critics_written_out
CUTS = test_pixel_sac.test_every_picture_is_cut_on_its_own
BRUTE = test_transitions.test_every_transition_is_the_one_of_its_episode
BILINEAR = test_curl.test_logits_are_bilinear_and_keys_are_the_target_encoders

ERRORS = {  # name: (function, right, wrong, test, its arguments: tmp_path is a fresh folder)
    "no-target-critics": (CRITIC, "self.target_critics", "self.critics", BELLMAN, ()),
    "no-target-encoder": (CRITIC, "self.target_encoder", "self.encoder", BELLMAN, ()),
    "larger-critic": (CRITIC, ".amin(0)", ".amax(0)", BELLMAN, ()),
    "entropy-left-out": (CRITIC, " - self.log_temperature.exp() * log_prob", "", BELLMAN, ()),
    "mean-of-both": (CRITIC, ".square()).sum()", ".square()).mean()", BELLMAN, ()),
    "encoder-detached": (CRITIC, "self.learned_from(now)", "self.learned_from(now).detach()", ROUTES, ()),
    "actor-teaches-the-encoder": (
        "agents.pixel_sac:PixelSAC.encode",
        "torch.no_grad()",
        "torch.enable_grad()",
        ROUTES,
        (),
    ),
    "actor-always": (UPDATE, "self.updates % options.actor_every == 0", "True", DELAY, ("curl",)),
    "targets-stand-still": (UPDATE, "self.update_targets()", "pass", DELAY, ("curl",)),
    "temperature-of-usual-momentum": (
        "agents.pixel_sac:PixelSAC.add_optimizers",
        ", betas=(0.5, 0.999)",
        "",
        OPTIMIZERS,
        ("curl",),
    ),
    "elu-in-the-encoder": ("models.pixels:PixelEncoder.convolve", "F.relu(", "F.elu(", WRITTEN_OUT, ()),
    "elu-in-actor-and-critics": ("models.norms:activation", "nn.ReLU(", "nn.ELU(", WRITTEN_OUT, ()),
    "one-cut-before-and-after": (
        UPDATE,
        "now, following = self.augment(step.now), self.augment(step.following)",
        "state, now = self.random.get_state(), self.augment(step.now)\n"
        "    self.random.set_state(state)\n"
        "    following = self.augment(step.following)",
        CUTS,
        (("sac_pixels", "agent.shift=3"), "monkeypatch"),
    ),
    "one-cut-for-all": ("models.frames:random_cut", "(2, len(pictures))", "(2, 1)", CUTS, (("curl",), "monkeypatch")),
    "over-the-end": (TRANSITIONS, "(~is_first[ahead])", "(is_first[ahead] | True)", BRUTE, ("tmp_path", 3, 1, True)),
    "undiscounted": (TRANSITIONS, "powers * same", "same", BRUTE, ("tmp_path", 3, 3, False)),
    "bootstraps-from-the-dead": (TRANSITIONS, " * alive", "", BRUTE, ("tmp_path", 3, 1, False)),
    "action-of-the-row": (TRANSITIONS, '["action"][begin + 1]', '["action"][begin]', BRUTE, ("tmp_path", 3, 1, False)),
    "next-of-the-full-length": (
        TRANSITIONS,
        "begin + steps",
        "begin + n_step + 0 * steps",
        BRUTE,
        ("tmp_path", 3, 3, True),
    ),
    "frames-of-the-episode-before": (STACK, "begin.gather(0, rows)", "0 * rows", BRUTE, ("tmp_path", 3, 1, True)),
    "newest-frame-first": (STACK, "frames - 1, -1, -1", "frames", BRUTE, ("tmp_path", 3, 1, False)),
    "keys-of-the-encoder": (LOGITS, "self.target_encoder(positive)", "self.encoder(positive)", BILINEAR, ()),
    "transposed": (LOGITS, "self.similarity @", "self.similarity.T @", BILINEAR, ()),
    "columns-for-rows": (LOGITS, "amax(1,", "amax(0,", BILINEAR, ()),
    "anchor-anew": (
        "agents.curl:CURL.auxiliary",
        "self.logits(now,",
        "self.logits(self.augment(step.now),",
        test_curl.test_the_anchor_is_the_critics_crop_and_the_positive_a_new_one,
        ("monkeypatch",),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_planted_error_shows(name, monkeypatch, tmp_path):
    where, right, wrong, test, arguments = ERRORS[name]
    plant(monkeypatch, where, right, wrong)
    fixtures = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    with pytest.raises(AssertionError):
        test(*(fixtures.get(argument, argument) for argument in arguments))


def test_models_without_weight_decay_show(monkeypatch):
    monkeypatch.setattr(dbc, "WEIGHT_DECAY", 0.0)
    with pytest.raises(AssertionError):
        OPTIMIZERS("dbc")
