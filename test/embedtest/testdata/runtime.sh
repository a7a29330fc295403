#!/bin/sh
# runtime.sh: what examples/go/container needs of podman's command line, with namespaces and a root
# directory as image. The variable CONTAINERS names a directory for their pids.
set -eu
command=$1
shift
case $command in
run)
	while [ "${1#--}" != "$1" ]; do
		case $1 in
		--env=*) export "${1#--env=}" ;;
		--name=*) name=${1#--name=} ;;
		esac
		shift
	done
	echo $$ >"$CONTAINERS/$name"
	image=$1
	shift
	exec unshare --mount --uts --ipc --root="$image" "$@"
	;;
kill)
	for name; do
		kill -KILL "$(cat "$CONTAINERS/$name")" 2>/dev/null || echo "$name has ended" >&2
	done
	;;
esac
