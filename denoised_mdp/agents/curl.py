"""CURL: pixel SAC whose encoder also learns which crops show the same picture (Laskin et al., ICML 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.agents.pixel_sac import PixelSAC
from denoised_mdp.agents.transitions import Transitions
from denoised_mdp.config.agents import CURLConfig
from denoised_mdp.optim import Adam, optimize


class CURL(PixelSAC):
    """`PixelSAC` on random crops, with a contrastive loss for its encoder.

    The anchor is the crop that the critics learned from, the positive a new crop of the same frames, encoded by the
    target encoder; the other pictures of the batch are the negatives. The public code steps the encoder with two Adam
    optimizers on this gradient; here it is one.
    """

    def __init__(self, options: CURLConfig, size: int, action_size: int):
        super().__init__(options, size, action_size)
        self.similarity = nn.Parameter(torch.rand(options.features, options.features))

    def add_optimizers(self) -> None:
        """Add an optimizer for the contrastive loss."""
        super().add_optimizers()
        trained = [*self.encoder.parameters(), self.similarity]
        self._optimizers["contrastive"] = Adam(trained, lr=self.options.contrastive_lr)

    def logits(self, now: Tensor, positive: Tensor) -> Tensor:
        """Return q W k^T of all pairs, minus the largest of each row: crops [B, 3 k, S, S] each -> [B, B].

        q is phi of the anchors `now`; k is the target encoder's of `positive`, without gradients.
        """
        with torch.no_grad():
            keys = self.target_encoder(positive)  # [B, F]
        logits = self.encoder(now) @ self.similarity @ keys.T  # [B, B]
        return logits - logits.amax(1, keepdim=True)

    def auxiliary(
        self, batch: dict[str, Tensor], step: Transitions, now: Tensor, following: Tensor
    ) -> dict[str, Tensor]:
        """Take one step of the encoder and W on the cross-entropy of each anchor's own positive among all, in nats."""
        logits = self.logits(now, self.augment(step.now))
        own = torch.arange(len(logits), device=logits.device)
        loss = F.cross_entropy(logits, own)
        norm = optimize(loss, self.optimizers["contrastive"], None)
        return {
            "model/contrastive_loss": loss.detach(),
            "model/contrastive_accuracy": (logits.argmax(1) == own).float().mean(),
            "model/contrastive_gradient": norm,
        }

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of each part that learns, W among them."""
        return super().parameter_counts() | {"similarity": self.similarity.numel()}
