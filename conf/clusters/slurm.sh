#!/usr/bin/env bash
#SBATCH --job-name=judgedrift
#SBATCH --time=2-00:00:00
#SBATCH --cpus-per-task=2
#SBATCH --mem=16G
#SBATCH --requeue
#SBATCH --open-mode=append
# Type it in the repository, whose folder all nodes see.
# The sweep as a small job of its own, which submits the cells as jobs with a GPU each:
#   sbatch conf/clusters/slurm.sh judge=sim-fair,sim-verbose seed=0,1,2 sweep.slurm.partition=gpu
# Four shares of the cells, each a job that has its GPUs at once; then the report:
#   sbatch --array=1-4 --gpus=8 --cpus-per-task=32 --mem=256G conf/clusters/slurm.sh judge=qwen3-4b seed=0,1,2
#   .venv/bin/python -m analysis.report study=quickstart
# PYTHON is the Python of the environment: .venv/bin/python, or "apptainer run --nv judgedrift.sif" for shares.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
read -ra python <<<"${PYTHON:-.venv/bin/python}"
folder=${LOCAL:-/var/tmp/judgedrift-$USER}
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
	engine=(sweep.engine=shard "sweep.shard=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT")
else
	engine=(sweep.engine=slurm)
fi
code=0
"${python[@]}" -m experiments.sweep "${engine[@]}" store.dir="$folder" \
	tracking.uri="${TRACKING_URI:-null}" "$@" || code=$?
if [ -e "$folder/verdicts.db" ]; then # a whole copy of this node's verdicts, for judges.store merge
	"${python[@]}" -m judges.store copy db="$folder/verdicts.db" out="runs/.stores/$(hostname).db"
fi
exit "$code"
