# lockkit-reaper DIR EXECUTABLE: waits for the end of the process that holds the other end of
# standard input, then kills the servers it had started and removes their directory DIR.
# Each line that is read is the whole list of processes that run at that time; those with a tilde
# before their number end by themselves and must be allowed to.
dir=$1 executable=$2 pids=
case $dir in */lockkit-*) ;; *) exit 2 ;; esac

while read -r line; do pids=$line; done

for pid in $pids; do
	case $pid in '~'*) ;; *) kill -s KILL -- "-$pid" 2>/dev/null ;; esac
done

# alive PID: and not a zombie, for which a container's first process may never wait.
alive() {
	if read -r _ _ state _ <"/proc/$1/stat"; then
		[ "$state" != Z ]
	else
		kill -s 0 "$1"
	fi
} 2>/dev/null

# nap LOOPS: bounds a loop.
nap() {
	[ "$1" -lt 600 ] && { sleep 0.1 2>/dev/null || sleep 1; }
}

for pid in $pids; do
	case $pid in '~'*) ;; *) continue ;; esac
	loops=0
	while alive "${pid#?}" && nap $loops; do loops=$((loops + 1)); done
	! alive "${pid#?}" || kill -s KILL -- "-${pid#?}"
done
[ -d "$dir" ] || exit 0

# Processes that left their group (each session of Postgres does) or that came too late to be on the
# list: they run our program in one of our directories.
for proc in /proc/[0-9]*; do
	[ "$proc/exe" -ef "$executable" ] || continue
	for data in "$dir"/*/; do
		[ "$proc/cwd" -ef "$data" ] && kill -s KILL "${proc#/proc/}" 2>/dev/null
	done
done

# Postgres killed by SIGKILL leaves a System V shared memory segment: the seventh line of
# postmaster.pid is its key and its id.
for file in "$dir"/*/postmaster.pid; do
	[ -r "$file" ] || continue
	id=$(sed -n '7s/.* //p' "$file")
	[ -n "$id" ] && ipcrm -m "$id" 2>/dev/null
done

# What has just been killed may still write for a moment.
loops=0
until rm -rf "$dir" 2>/dev/null || ! nap $loops; do loops=$((loops + 1)); done
