"""TIA: two world models that paint one picture, one of which must not know the reward (Fu et al., ICML 2021).

The stream x of the task and the stream y of the rest each have an encoder, an RSSM that sees the action, a reward head
and a decoder. A mask m blends their pictures: m mu_x + (1 - m) mu_y. The reward head of y, the adversary, learns what y
reveals of the reward, and y learns to reveal nothing ("reward dissociation"). Policy and value see x.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models.base import Filtered, Learned, WorldModel
from denoised_mdp.models.latent import Latent, Layout
from denoised_mdp.models.losses import HALF_LOG_2PI, KLWeights, image_nll, scalar_nll
from denoised_mdp.models.networks import MLP, images_to_float
from denoised_mdp.models.rssm import RSSM
from denoised_mdp.models.structure import LatentSpec, Table
from denoised_mdp.models.vision import Decoder, Encoder
from denoised_mdp.optim import clipped_step, differentiate, make_optimizer, optimize, parameters_of
from denoised_mdp.optim.parallel import average

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config


class Stream(nn.Module):
    """Encoder and RSSM of one row of the table, as if it were the only latent."""

    def __init__(self, row: LatentSpec, action_size: int, encoder: Encoder, norm: str):
        super().__init__()
        alone = Table([replace(row, seen_by_policy=True, rewarded=True)])
        self.encoder, self.rssm = encoder, RSSM(alone, action_size, encoder.width, norm)


class TIA(WorldModel):
    """Both streams. `table` has two rows without parents, x and y, of which the policy sees x.

    `adversary_weight`: weight of the adversary's error, which y maximizes. `adversary_steps`: its steps per update, at
    rate `adversary_lr`. `alone_weight`: weight of the whole picture painted by y alone, so that y cannot stay empty.
    `kl`: alpha and free nats, for each stream on its own. Others: as in `DenoisedModel`.
    """

    decodes = True
    layers: ClassVar[dict[str, str]] = {
        "signal": "painted by x, before the mask",
        "noise": "painted by y, before the mask",
        "mask": "white: the signal counts, black: the noise",
    }

    def __init__(
        self,
        table: Table,
        action_size: int,
        *,
        size: int,
        depth: int,
        embed: int | None,
        pixel_range: float,
        norm: str,
        convolutions: str | None,
        hidden: int,
        reward_layers: int,
        reward_std: float,
        continuation: bool,
        kl: KLWeights,
        adversary_weight: float,
        adversary_steps: int,
        adversary_lr: float,
        alone_weight: float,
        lr: float,
        eps: float,
        clip: float | None,
        name: str,
        agc: float | None,
        warmup: int,
    ):
        super().__init__()
        self.table, self.action_size, self.size = table, action_size, size
        self.layout, self.reward_std = Layout(list(table.rows.values())), reward_std
        self.kl, self.clip = kl, clip
        self.adversary_weight, self.adversary_steps = adversary_weight, adversary_steps
        self.alone_weight = alone_weight
        pictures = {"size": size, "depth": depth, "norm": norm, "convolutions": convolutions}
        self.x, self.y = (
            Stream(row, action_size, Encoder(embed=embed, pixel_range=pixel_range, **pictures), norm)
            for row in self.rows
        )
        features = {row.name: row.belief + row.width for row in self.rows}
        paint = partial(Decoder, embed=self.encoder.width, blocks=None, **pictures)
        # Three channels of a picture, three of features for the mask.
        self.decoders = nn.ModuleDict({stream: paint(count, channels=6) for stream, count in features.items()})
        self.mask = nn.Conv2d(6, 1, 1)
        self.alone = paint(features["y"])
        heads = {stream: MLP(count, hidden, 1, reward_layers, norm) for stream, count in features.items()}
        self.rewards = nn.ModuleDict(heads)
        if continuation:
            self.add_continuation(hidden, norm)
        make = partial(make_optimizer, eps=eps, name=name, agc=agc)
        self.optimizers = {
            group: make((p for module in modules for p in module.parameters()), lr=rate, warmup=rise)
            for group, modules, rate, rise in (
                ("x", [self.x, self.rewards["x"], *([self.continuation] if continuation else [])], lr, warmup),
                ("y", [self.y, self.alone], lr, warmup),
                ("decoders", [self.decoders, self.mask], lr, warmup),
                ("adversary", [self.rewards["y"]], adversary_lr, warmup * adversary_steps),  # counted in its steps
            )
        }

    @classmethod
    def options(cls, config: Config) -> dict[str, Any]:
        """Constructor arguments from a configuration; see `WorldModel.options`."""
        names = ("adversary_weight", "adversary_steps", "adversary_lr", "alone_weight")
        return super().options(config) | {name: getattr(config.model, name) for name in names}

    @property
    def rows(self) -> list[LatentSpec]:
        """The rows of x and y."""
        return list(self.table.rows.values())

    @property
    def encoder(self) -> Encoder:
        """The encoder of x."""
        return self.x.encoder

    @property
    def free_nats(self) -> float:
        """Nats per step that cost nothing in the KL of x."""
        return self.kl.free_nats

    def update(self, batch: dict[str, Tensor], generator: torch.Generator) -> Learned:
        """Take the adversary's steps, then one of each other group; see `WorldModel.update`.

        The gradients of the other groups are taken before any of them moves. One backward pass serves all: apart from
        the joint picture, each term depends on one stream alone. The decoders' loss is the sum of both losses, so
        the joint picture counts twice there.
        """
        noise = self.draw_noise(*batch["reward"].shape, generator=generator)
        images = self.float_images(batch["observation"])  # [T B, 3, H, W]
        filtered = self._filter(
            images, batch["action"], batch["is_first"], noise, self.latent_before(batch.get("start"))
        )
        gradients = {"adversary": self.teach_adversary(filtered.latent, batch["reward"])}
        terms, predicted, metrics = self.terms(filtered, images, batch["reward"], batch["is_terminal"])
        losses = self.losses(terms)
        groups = {name: self.optimizers[name] for name in ("x", "y", "decoders")}
        differentiate(losses["x"] + losses["y"] - terms["image"], *groups.values())
        for parameter in parameters_of(groups["decoders"]):
            parameter.grad.mul_(2.0)
        gradients |= {name: clipped_step(optimizer, self.clip) for name, optimizer in groups.items()}
        metrics |= {f"model/loss_{name}": loss.detach() for name, loss in losses.items()}
        metrics |= {f"model/gradient_{name}": norm for name, norm in gradients.items()}
        return Learned(filtered.latent.map(torch.detach), predicted, metrics)

    def teach_adversary(self, latent: Latent, reward: Tensor) -> Tensor:
        """Take the adversary's steps, with y held fixed; return the last gradient norm.

        latent [T, B, ...], reward [T, B].
        """
        features = latent.features("y").detach()  # [T, B, D_y + S_y]
        for _ in range(self.adversary_steps):
            loss = scalar_nll(self.rewards["y"](features).squeeze(-1), reward, self.reward_std).mean()
            norm = optimize(loss, self.optimizers["adversary"], self.clip)
        return norm

    def terms(
        self, filtered: Filtered, images: Tensor, reward: Tensor, is_terminal: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """The terms of the losses: scalars in nats, means over T and B.

        filtered: a filtered batch, [T, B, ...]; images [T B, 3, H, W]; reward and is_terminal [T, B]. Also returns the
        reward predicted from x [T, B] and metrics, both detached.
        """
        latent = filtered.latent
        painted_x, painted_y, mask = self.paint(latent)
        joint = torch.lerp(painted_y, painted_x, mask)  # [T B, 3, H, W]
        predicted = {name: self.rewards[name](latent.features(name)).squeeze(-1) for name in ("x", "y")}  # [T, B]
        terms = {
            "image": image_nll(joint, images),
            "image_alone": image_nll(self.alone(latent.features("y").flatten(0, -2)), images),
        }
        terms |= {f"reward_{name}": scalar_nll(r, reward, self.reward_std).mean() for name, r in predicted.items()}
        kl: dict[str, Tensor] = {}  # {name: [T, B]}
        for name, stream in (("x", self.x), ("y", self.y)):
            sides = ({name: side[name]} for side in (filtered.posterior, filtered.prior))
            terms[f"kl_{name}"], found = self.kl.total(*sides, stream.rssm.table)
            kl |= found
        if self.continuation is not None:
            terms["continuation"] = self.continuation_nll(latent, is_terminal)
        with torch.no_grad():
            error, constant = (joint - images).square(), HALF_LOG_2PI * images[0].numel()
            under_mask, all_of_it, mean = (mask * error).sum(), error.sum(), reward.mean()
            average([under_mask, all_of_it, mean])
            metrics = {
                "model/image_error": terms["image"] - constant,
                "model/image_error_alone": terms["image_alone"] - constant,
                "model/mask": mask.float().mean(),
                "model/error_under_mask": under_mask / all_of_it,
                "model/reward_error": 0.5 * (predicted["x"] - reward).square().mean(),
                "model/reward_error_y": 0.5 * (predicted["y"] - reward).square().mean(),
                "model/reward_error_constant": 0.5 * (reward - mean).square().mean(),
                "model/reward_x": predicted["x"].mean(),
            }
        metrics |= {f"model/kl_{name}": part.mean() for name, part in kl.items()}
        metrics |= {"model/continuation_nll": terms["continuation"]} if "continuation" in terms else {}
        return terms, predicted["x"].detach(), {name: value.detach() for name, value in metrics.items()}

    def losses(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """The loss of each stream. The loss of y falls as the adversary's error grows."""
        return {
            "x": terms["image"] + terms["reward_x"] + terms["kl_x"] + terms.get("continuation", 0.0),
            "y": terms["image"]
            + self.alone_weight * terms["image_alone"]
            - self.adversary_weight * terms["reward_y"]
            + terms["kl_y"],
        }

    def paint(self, latent: Latent) -> tuple[Tensor, Tensor, Tensor]:
        """Latents [..., D], [..., S] -> pictures of x and of y, and the mask in (0, 1), [N, 3, H, W] each.

        The mask has three equal channels: a single one, broadcast over a picture's three, would run in slow loops over
        three numbers. For the same reason the pictures are copies, not views of half the channels.
        """
        painted = [self.decoders[name](latent.features(name).flatten(0, -2)) for name in ("x", "y")]  # [N, 6, H, W]
        features = torch.cat([both[:, 3:] for both in painted], 1)  # [N, 6, H, W]
        weight, bias = (p.to(features.dtype) for p in (self.mask.weight, self.mask.bias))
        mask = F.conv2d(features, weight.expand(3, -1, -1, -1), bias.expand(3)).sigmoid()  # [N, 3, H, W]
        return *(both[:, :3].contiguous(memory_format=torch.channels_last) for both in painted), mask

    def decode(self, latent: Latent) -> Tensor:
        """Latents [..., D], [..., S] -> joint pictures [N, 3, H, W]; see `WorldModel.decode`."""
        painted_x, painted_y, mask = self.paint(latent)
        return torch.lerp(painted_y, painted_x, mask)

    def show(self, title: str, latent: Latent) -> Tensor:
        """The picture of one stream, or the mask in shades of grey; see `WorldModel.show`."""
        painted_x, painted_y, mask = self.paint(latent)
        return {"signal": painted_x, "noise": painted_y, "mask": mask - 0.5}[title]

    def float_images(self, observation: Tensor) -> Tensor:
        """uint8 [..., H, W, 3] -> floats [N, 3, H, W] in [-0.5, 0.5] in the parameters' type."""
        return images_to_float(observation, self.encoder.like.dtype)

    def filter(
        self, observation: Tensor, action: Tensor, is_first: Tensor, noise: Tensor, initial: Latent | None = None
    ) -> Filtered:
        """Posterior over a sequence; the embedding is that of x. See `WorldModel.filter`."""
        return self._filter(self.float_images(observation), action, is_first, noise, initial)

    def _filter(
        self, images: Tensor, action: Tensor, is_first: Tensor, noise: Tensor, initial: Latent | None = None
    ) -> Filtered:
        """`filter` for float images [T B, 3, H, W]."""
        noises, parts, embeddings = self.layout.split_state(noise), [], []
        for row, stream in zip(self.rows, (self.x, self.y), strict=True):
            embeddings.append(stream.encoder(images).unflatten(0, is_first.shape))  # [T, B, E]
            before = None if initial is None else initial.select([row])
            parts.append(stream.rssm.observe(embeddings[-1], action, is_first, noises[row.name], before))
        latents, posteriors, priors = zip(*parts, strict=True)
        latent = self._join(*latents)
        return Filtered(latent, posteriors[0] | posteriors[1], priors[0] | priors[1], embeddings[0])

    def _join(self, x: Latent, y: Latent) -> Latent:
        """The latents of both streams as one."""
        return Latent(torch.cat((x.belief, y.belief), -1), torch.cat((x.state, y.state), -1), self.layout)

    def initial(self, batch: int) -> Latent:
        """The zero latent, [B, ...]."""
        return self._join(self.x.rssm.initial(batch), self.y.rssm.initial(batch))

    def imagine_step(self, latent: Latent, action: Tensor, noise: Tensor) -> Latent:
        """Sample the prior of x; see `WorldModel.imagine_step`."""
        return self.x.rssm.imagine_step(latent, action, noise)

    def seen_reward(self, latent: Latent) -> Tensor:
        """Mean reward [...] predicted from latents [...] of x."""
        return self.rewards["x"](latent.features()).squeeze(-1)
