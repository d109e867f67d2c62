# lockkit-reaper DIR EXECUTABLE: waits for the end of the process that holds the other end of
# standard input, then kills the servers it had started and removes their directory DIR.
# Each line that is read is the whole list of processes that run at that time.
dir=$1 executable=$2 pids=
case $dir in */lockkit-*) ;; *) exit 2 ;; esac

while read -r line; do pids=$line; done

# Nothing may go on while we look: initdb starts one process after the other.
for pid in $pids; do
	kill -s STOP -- "-$pid"
done 2>/dev/null

# The processes that run our program in one of our directories: some left their group (each session
# of Postgres does) and some came too late to be on the list.
ours=
for proc in /proc/[0-9]*; do
	[ "$proc/exe" -ef "$executable" ] || continue
	for data in "$dir"/*/; do
		[ "$proc/cwd" -ef "$data" ] && ours="$ours ${proc#/proc/}"
	done
done 2>/dev/null

# initdb cannot be told to keep its shared memory in the directory. The name is seen in the maps of a
# process only while it lives, and surely only when it stands.
shm=
for pid in $ours; do
	kill -s STOP "$pid"
	tries=0
	while read -r _ _ state _ <"/proc/$pid/stat" && [ "$state" != T ] && [ $tries -lt 100 ]; do
		tries=$((tries + 1))
		sleep 0.01
	done
	while read -r _ _ _ _ _ path; do
		case $path in /dev/shm/PostgreSQL.*) shm="$shm ${path%% *}" ;; esac
	done <"/proc/$pid/maps"
done 2>/dev/null

for pid in $pids; do
	kill -s KILL -- "-$pid"
done 2>/dev/null
for pid in $ours; do
	kill -s KILL "$pid"
done 2>/dev/null
[ -z "$shm" ] || rm -f $shm
[ -d "$dir" ] || exit 0

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
