#!/usr/bin/env bash
# From a fresh clone to a trained model and its video: set-up, training, evaluation, rendering.
# Stopped, it continues next time. Arguments are passed to the training; one that changes the run needs a folder of its
# own: `bash scripts/quickstart.sh seed=1 run_dir=runs/seed1`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

run=runs/quickstart
weights="--checkpoint best"
pictures=yes
for argument in "$@"; do
    case $argument in
    run_dir=*) run=${argument#run_dir=} ;;
    train.eval_every=* | train.snapshot_every=*) weights= ;; # then weights and evaluations need not be of the same steps
    agent=world_model) ;;
    agent=* | model.decoder=false) pictures= ;; # nothing to decode
    esac
done
.venv/bin/denoised-mdp train preset=quickstart run_dir="$run" "$@"
echo
echo "Evaluation on held-out episodes${weights:+, with the weights that returned most while training}:"
.venv/bin/denoised-mdp evaluate "$run" $weights --random --episodes 20
if [ -n "$pictures" ]; then
    echo
    echo "Signal and noise of held-out episodes, as a picture and a video:"
    .venv/bin/denoised-mdp render "$run" $weights
fi
