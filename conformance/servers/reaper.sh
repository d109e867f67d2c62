# lockkit-reaper DIR EXECUTABLE: waits for the end of the process that holds the other end of
# standard input, then kills the servers it had started and removes their directory DIR.
# Each line that is read is the whole list of processes that run at that time.
dir=$1 executable=$2 pids=
case $dir in */lockkit-*) ;; *) exit 2 ;; esac

while read -r line; do pids=$line; done

for pid in $pids; do
	kill -s KILL -- "-$pid" 2>/dev/null
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
tries=0
until rm -rf "$dir" 2>/dev/null || [ $tries -ge 100 ]; do
	tries=$((tries + 1))
	sleep 0.1 2>/dev/null || sleep 1
done
