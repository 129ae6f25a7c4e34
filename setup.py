"""Package metadata; ``pip install -e .[test] -c constraints.txt`` installs the tested versions."""

import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = re.search(r'__version__ = "(.+)"', (here / "denoised_mdp" / "__init__.py").read_text())[1]
readme = here / "README.md"

setup(
    name="denoised-mdp",
    version=version,
    description="World models that keep only what is controllable and relevant to the reward (Denoised MDPs)",
    long_description=readme.read_text() if readme.exists() else "",
    long_description_content_type="text/markdown",
    author="The denoised-mdp authors",
    license="MIT",
    python_requires=">=3.10,<3.13",  # labmaze, which dm_control needs, comes ready-made up to 3.12
    packages=[*find_packages(include=["denoised_mdp", "denoised_mdp.*"]), "denoised_mdp.configs"],
    package_dir={"denoised_mdp.configs": "configs"},  # the YAML files stand at the top of a checkout
    package_data={
        "denoised_mdp.configs": ["*.yaml", "*/*.yaml", "*/*/*.yaml", "*/*/*/*.yaml"],
        "denoised_mdp.analysis.report": ["templates/*.j2"],
        "denoised_mdp.models": ["kernels.c"],
        "denoised_mdp": ["pretrained/*/config.yaml", "pretrained/*/checkpoints/*/*"],
    },
    entry_points={"console_scripts": ["denoised-mdp = denoised_mdp.cli.main:main"]},
    install_requires=[
        "argcomplete>=3.5",  # completion in the shell
        "av>=17",  # earlier ones take full-range colours for limited ones
        "dm_control>=1.0.34",
        "gymnasium>=1.2.2",
        "hydra-core>=1.3",
        "imageio>=2.34",
        "imageio-ffmpeg>=0.5",
        "jinja2>=3.1",
        "matplotlib>=3.8",
        "mujoco>=3.3.6,<4",  # dm_control 1.0.50 does not work with mujoco 4.0.0
        "numpy>=1.24",
        "omegaconf>=2.3",
        "pillow>=10.1",
        "pyyaml>=6",
        "safetensors>=0.6.2",  # earlier ones know no uint32 and uint64
        "scipy>=1.11",
        "tensorboard>=2.14",
        "torch>=2.4",
        "typing-extensions>=4.4",
    ],
    extras_require={
        # There is no extra for RoboDesk: of that package only the model files are used, and it would bring gym along.
        # `pip install --no-deps robodesk==1.0.0`
        "slurm": ["hydra-submitit-launcher>=1.2", "submitit>=1.5"],
        "ray": ["hydra-ray-launcher>=1.2.2", "ray[default]>=2.9"],
        "joblib": ["hydra-joblib-launcher>=1.2"],
        "wandb": ["wandb>=0.17"],
        "mlflow": ["mlflow-skinny>=2.14"],
        "sb3": ["stable-baselines3>=2.7"],  # for scripts/examples, and for the policies of `probe joints-data`
        "test": [
            "gymnasium[classic-control]>=1.2.2",  # CartPole
            "hypothesis>=6.90",
            "pytest>=7.4",
            "pytest-timeout>=2.1",
            "pytest-xdist>=3.7",
            "ruff>=0.5",
            "stable-baselines3>=2.7",
            "vermin>=1.6",
        ],
    },
)
