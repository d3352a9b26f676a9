#!/usr/bin/env bash
# What every node of a Ray cluster does: the first runs the sweep, the others lend it their GPUs.
#   bash conf/clusters/run_node.sh RANK ADDRESS_OF_THE_FIRST_NODE judge=sim-fair,sim-verbose seed=0,1,2
# SHARED (/shared) is a folder that all nodes see, LOCAL (/var/tmp/judgedrift) is on a disk of the node.
# Another Ray cluster on the same host is left alone: the port is ours, and nothing types `ray stop`.
set -euo pipefail
rank=$1 host=$2 port=${RAY_PORT:-6379}
shift 2
shared=${SHARED:-/shared} folder=${LOCAL:-/var/tmp/judgedrift}
# without a token, whoever reaches the port runs what they like
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0 RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$shared/.ray-token

keep() { # a whole copy of this node's verdicts, for judges.store merge
	if [ -e "$folder/verdicts.db" ]; then
		python -m judges.store copy db="$folder/verdicts.db" out="$shared/stores/$(hostname).db"
	fi
}

answers() { (: <>"/dev/tcp/$host/$port") 2>/dev/null; }

if [ "$rank" != 0 ]; then
	until answers; do sleep 2; done
	ray start --address "$host:$port" --block || true # it ends with the first node's
	keep
	exit
fi
mkdir -p "$shared"
(umask 077 && head -c 32 /dev/urandom | base64 >"$RAY_AUTH_TOKEN_PATH")
ray start --head --node-ip-address "$host" --port "$port" --include-dashboard false --block &
trap 'kill $! && wait' EXIT
until answers; do sleep 2; done
code=0
python -m experiments.sweep sweep.engine=ray sweep.ray.address="$host:$port" \
	runs_dir="$shared/runs" store.dir="$folder" tracking.uri="${TRACKING_URI:-null}" "$@" || code=$?
keep
exit "$code"
