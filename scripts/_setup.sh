# Sourced by the other scripts: a virtual environment in .venv with everything installed, and a working renderer.
# Does nothing when that is done already. PYTHON=/path/to/python chooses the interpreter. pip reads PIP_EXTRA_INDEX_URL:
# without an NVIDIA GPU, name PyTorch's package index for the CPU there; the build for CUDA takes gigabytes.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Many containers set this variable. Then every start would compile PyTorch and all else anew: 12 CPU seconds instead of 5.
# So what these scripts import stays compiled. pip would compile all that there is, of which a fifth is ever imported.
unset PYTHONDONTWRITEBYTECODE

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON" # its path may have spaces
    else
        set -- python3 python python3.12 python3.11 python3.10
    fi
    for candidate in "$@"; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    # dm_control needs labmaze, which comes ready-made for no later Python.
    echo "set-up: Python 3.10, 3.11 or 3.12 is needed (found: $("${PYTHON:-python3}" --version 2>&1 | tail -n 1))." \
        "Install one, or name it: PYTHON=/path/to/python3.11 bash $0" >&2
    return 1
}

has_pip() {
    .venv/bin/python -m pip --version >/dev/null 2>&1
}

install_package() {
    # Also where it was interrupted while it was made, or the Python that it was made of is gone.
    if ! has_pip && ! { .venv/bin/python -m ensurepip >/dev/null 2>&1 && has_pip; }; then
        local python
        python=$(find_python)
        echo "set-up: creating .venv with $("$python" --version)"
        "$python" -m venv --clear .venv || {
            echo "set-up: this Python cannot make virtual environments (Debian, Ubuntu: apt-get install python3-venv)" >&2
            return 1
        }
    fi
    echo "set-up: installing the package and its dependencies into .venv (some minutes)"
    local install=(.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-compile)
    "${install[@]}" --constraint constraints.txt torch
    "${install[@]}" --constraint constraints.txt --editable '.[test]'
    # The model files of RoboDesk, without the old packages that only its code needs; all else works without them.
    "${install[@]}" --constraint constraints.txt --no-deps robodesk ||
        echo "set-up: env=robodesk will not work until: pip install --no-deps robodesk==1.0.0" >&2
}

renders() {
    .venv/bin/python -W ignore - <<'PYTHON'
import sys

from denoised_mdp.envs import make_env

try:
    environment = make_env("cheetah_run", episode_steps=2)
    environment.reset(seed=0)
    environment.close()
except Exception as error:
    print(f"set-up: no frame could be rendered: {error}", file=sys.stderr)
    sys.exit(1)
PYTHON
}

install_renderer() {
    local packages="libegl1 libegl-mesa0 libgl1-mesa-dri libgl1"
    if renders 2>/dev/null; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "set-up: installing libraries for rendering without a display ($packages)"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $packages >/dev/null; } || true
    fi
    renders || {
        echo "set-up: install OpenGL for rendering without a display, on Debian and Ubuntu:" >&2
        echo "  sudo apt-get install $packages" >&2
        return 1
    }
}

# What was installed is remembered by a checksum of its requirements.
wanted=$(cat setup.py constraints.txt | cksum)
if [ "$(cat .venv/.installed 2>/dev/null)" != "$wanted" ] || ! .venv/bin/denoised-mdp --version >/dev/null 2>&1; then
    install_package
    install_renderer
    echo "$wanted" >.venv/.installed
fi
