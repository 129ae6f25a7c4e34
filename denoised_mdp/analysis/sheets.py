"""Layout of decoded latents: a still sheet, a moving one, and heat maps of where each row moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from denoised_mdp.progress import track

BACKGROUND, INK, FAINT = (18, 20, 24), (238, 240, 244), (150, 156, 166)
BRIGHTEST = 99.5
"""percentile of the movement that is drawn at full brightness"""
LEAST = 2.0
"""smallest movement (of 255) that may be drawn at full brightness, so that invisible noise does not light up"""
GAP = 4


@dataclass
class SheetRow:
    """One row of a sheet: a title, what it means, and a frame per step, uint8 [n, H, W, 3]."""

    title: str
    meaning: str
    frames: np.ndarray

    @property
    def movement(self) -> np.ndarray:
        """Standard deviation of each pixel over time, root mean square over channels: float [H, W], of 255."""
        return np.sqrt(np.square(self.frames.astype(np.float32).std(0)).mean(-1))


def heat_maps(group: Sequence[SheetRow]) -> list[np.ndarray]:
    """The movement of each row as an image, uint8 [H, W, 3]: black stands still, bright yellow moves most.

    All decoded rows share one scale, so that their brightness can be compared; the camera's row has its own. Rows that
    hardly move at all stay dark.
    """
    movements = [row.movement for row in group]
    tops = [float(np.percentile(movement, BRIGHTEST)) for movement in movements]
    scales = [tops[0], *[max(tops[1:], default=0.0)] * len(tops[1:])]
    colors = matplotlib.colormaps["inferno"]
    pairs = zip(movements, scales, strict=True)
    return [(255 * colors(movement / max(scale, LEAST))[..., :3]).astype(np.uint8) for movement, scale in pairs]


def stretched(group: Sequence[SheetRow]) -> list[SheetRow]:
    """The rows with their contrast raised by the same factor, so that the camera's row spans black to white."""
    low, high = np.percentile(group[0].frames, (0.5, 99.5))
    gain = 255 / max(high - low, 1.0)
    return [replace(row, frames=((row.frames - low) * gain).clip(0, 255).round().astype(np.uint8)) for row in group]


def contact_sheet(groups: Sequence[Sequence[SheetRow]], columns: int = 6, side: int = 144) -> np.ndarray:
    """A still image: one line per row, with `columns` moments of the episode from left to right, then what moved.

    groups: the rows of each episode. Returns uint8 [height, width, 3].
    """
    label, head = side + 96, 34
    lines = sum(len(group) for group in groups)
    width = label + (columns + 1) * (side + GAP) + 4 * GAP
    height = len(groups) * head + lines * (side + GAP) + 2 * GAP
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    draw, top = ImageDraw.Draw(sheet), GAP
    for number, group in enumerate(groups, 1):
        steps = np.linspace(0, len(group[0].frames) - 1, columns + 1).astype(int)[1:]
        lefts = [label + i * (side + GAP) for i in range(columns)] + [width - side - GAP]
        if len(groups) > 1:
            draw.text((12, top + 8), f"episode {number}", INK, _font(15))
        for left, text in zip(lefts, [*(f"t = {step}" for step in steps), "what moved"], strict=True):
            color = FAINT if text.startswith("t") else INK
            draw.text((left + side // 2, top + 10), text, color, _font(14), anchor="ma")
        top += head
        for row, heat in zip(group, heat_maps(group), strict=True):
            draw.text((12, top + side // 2), row.title, INK, _font(side // 8), anchor="ld")
            _wrapped_text(draw, (12, top + side // 2 + 6), row.meaning, label - 24, size=side // 12)
            for left, picture in zip(lefts, [*row.frames[steps], heat], strict=True):
                sheet.paste(_enlarge(picture, side), (left, top))
            top += side + GAP
    return np.asarray(sheet)


def video(groups: Sequence[Sequence[SheetRow]], side: int = 192) -> Iterator[np.ndarray]:
    """A video: the rows of an episode side by side, what moved below them, and the episodes stacked.

    Yields frames uint8 [height, width, 3] with even sides, as H.264 requires.
    """
    head, between, letters = 26 + side // 8, 30, side // 17
    episode = 2 * (side + GAP) + between
    width = GAP + max(len(group) for group in groups) * (side + GAP)
    height = head + len(groups) * episode + GAP
    canvas = Image.new("RGB", (width + width % 2, height + height % 2), BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    for j, group in enumerate(groups):
        below = head + j * episode + side
        caption = "what moved: standard deviation of each pixel over time"
        draw.text((width // 2, below + between // 2), caption, FAINT, _font(letters), anchor="mm")
        for i, (row, heat) in enumerate(zip(group, heat_maps(group), strict=True)):
            left = GAP + i * (side + GAP)
            canvas.paste(_enlarge(heat, side), (left, below + between))
            if j == 0:
                draw.text((left + side // 2, 5), row.title, INK, _font(side // 11), anchor="ma")
                place = left + side // 2, side // 11 + 12
                _wrapped_text(draw, place, row.meaning, side, letters, anchor="ma")
    length = max(len(group[0].frames) for group in groups)  # an episode that has ended freezes
    for t in track(range(length), "writing the video", "frames", delay=1):
        frame = canvas.copy()
        for j, group in enumerate(groups):
            for i, row in enumerate(group):
                shown = row.frames[min(t, len(row.frames) - 1)]
                frame.paste(_enlarge(shown, side), (GAP + i * (side + GAP), head + j * episode))
        yield np.asarray(frame)


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _enlarge(frame: np.ndarray, side: int) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(frame)).resize((side, side), Image.Resampling.BICUBIC)


def _wrapped_text(
    draw: ImageDraw.ImageDraw, position: tuple[int, int], text: str, width: int, size: int, anchor: str = "la"
) -> None:
    """Draw faint text with line breaks; anchor: as in Pillow, "la" (left) or "ma" (middle)."""
    lines, font = [""], _font(size)
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    align = "left" if anchor == "la" else "center"
    draw.multiline_text(position, "\n".join(lines), FAINT, font, anchor=anchor, align=align)
