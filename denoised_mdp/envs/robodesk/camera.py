"""RoboDesk's camera: viewpoints, motion, and oversampled rendering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from PIL import Image

from denoised_mdp.envs.rendering import Renderer  # first: it chooses the GL backend
from denoised_mdp.errors import UserError

import mujoco  # isort: skip

OVERSAMPLING = 1.875  # 96 pixels are drawn as 180 (Wang et al. 2022)
CAMERAS = ("auto", "desk", "room")


@dataclass(frozen=True)
class View:
    """Offset from the package's camera pose, and the part of the square picture that is kept.

    Attributes:
        target: shift of the point that the camera looks at [3], metres.
        distance, elevation: offsets of the camera about that point, metres and degrees.
        part: left, top, right, bottom edges in [0, 1].
    """

    target: tuple[float, float, float]
    distance: float
    elevation: float
    part: tuple[float, float, float, float]

    def pose(self, eye_shift: np.ndarray, target_shift: np.ndarray) -> tuple[np.ndarray, float, float, float]:
        """Return target [3], distance, azimuth and elevation (degrees) of a shaken camera.

        The shifts [3] move the package's pose. The view's offsets are added afterwards.
        """
        target = TARGET + target_shift  # [3]
        line = target - (EYE + eye_shift)  # [3]
        distance = float(np.linalg.norm(line))
        azimuth = float(np.rad2deg(np.arctan2(line[1], line[0])))
        elevation = float(np.rad2deg(np.arcsin(line[2] / distance)))
        return target + self.target, distance + self.distance, azimuth, elevation + self.elevation


TARGET = np.array([0.0, 0.535, 1.1])  # of the package's camera, which is 1.8 m away and looks along y, 60 degrees down
EYE = TARGET - 1.8 * np.array([0.0, np.cos(np.deg2rad(60)), -np.sin(np.deg2rad(60))])
# The package's own view, and a farther one that includes the television (Wang et al. 2022).
DESK = View((0.0, 0.0, 0.0), 0.0, 0.0, (16.75 / 120, 25.0 / 120, 105.0 / 120, 88.75 / 120))
ROOM = View((0.875, 0.4, 0.875), 1.15, 13.0, (0.0, 39 / 180, 1.0, 1.0))


def choose_view(camera: int | str, room: bool) -> View:
    """Return the view of one of `CAMERAS`, by number or name; "auto" is the room if there is one, else the desk.

    Raises:
        UserError: there is no such camera.
    """
    number = CAMERAS.index(camera) if isinstance(camera, str) and camera in CAMERAS else camera
    if isinstance(number, bool) or not isinstance(number, Integral) or number not in range(len(CAMERAS)):
        names = ", ".join(f"{index} ({name})" for index, name in enumerate(CAMERAS))
        raise UserError(f"RoboDesk has no camera {camera!r}. Choose one of: {names}.")
    return (ROOM if room else DESK, DESK, ROOM)[number]


class RoomRenderer(Renderer):
    """Renders the scene from a moving camera, and draws only the part of the view that is kept.

    Args:
        model: the scene.
        size: height and width of a picture in pixels. It is rendered `OVERSAMPLING` times as large.
        view: pose and crop of the camera at rest.
        quality, stage: see `Renderer`.
    """

    def __init__(self, model: mujoco.MjModel, size: int, view: View, quality: str, stage: Sequence[Callable] = ()):
        self.size, self.view = size, view
        self._whole = round(OVERSAMPLING * size)
        left, top, right, bottom = (self._whole * edge for edge in view.part)
        self._columns = int(np.floor(left)), int(np.ceil(right))
        self._rows = int(np.floor(top)), int(np.ceil(bottom))
        self._box = left - self._columns[0], top - self._rows[0], right - self._columns[0], bottom - self._rows[0]
        height, width = self._rows[1] - self._rows[0], self._columns[1] - self._columns[0]
        super().__init__(model, height, width, -1, quality, stage=[self._narrow, *stage])

    def upload_picture(self, texture: int, picture: np.ndarray) -> None:
        """Replace a texture of the model with `picture`, uint8 [H, W, 3], upright on the television."""
        begin = self._model.tex_adr[texture]
        self._model.tex_data[begin : begin + picture.size] = picture.ravel()
        self._bind()
        mujoco.mjr_uploadTexture(self._model, self._context, texture)

    def film(self, data: mujoco.MjData, eye_shift: np.ndarray, target_shift: np.ndarray) -> np.ndarray:
        """Return the picture from a camera shifted as in `View.pose`, uint8 [size, size, 3]."""
        camera = self._camera
        camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = self.view.pose(eye_shift, target_shift)
        self._draw(data, skybox=True, floor=True)
        drawn = Image.fromarray(self._rgb[::-1])  # GL's first row is the lowest
        return np.array(drawn.resize((self.size, self.size), Image.Resampling.LANCZOS, self._box))

    def close(self) -> None:
        """Free the GL objects, and break the reference cycle that only the garbage collector would free."""
        super().close()
        self._stage = ()

    def _narrow(self, scene, model, data) -> None:
        """Narrow the field of view to the rows and columns that are drawn."""
        for camera in scene.camera:  # both eyes: MuJoCo renders their average
            top, bottom = camera.frustum_top, camera.frustum_bottom
            pixel = (top - bottom) / self._whole
            camera.frustum_top, camera.frustum_bottom = top - pixel * self._rows[0], top - pixel * self._rows[1]
            camera.frustum_center += pixel * (sum(self._columns) - self._whole) / 2
