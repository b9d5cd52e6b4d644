# The script of the cover letter, in a memory cgroup of its own.
#
# usage: sh kernel.sh STAYING BESIDE SECONDS  (the letter: 1000 10 10)
#
# Prints Percpu: of /proc/meminfo in kB, a line each: at the start, with all groups, SECONDS after those beside were removed, and SECONDS
# after all were removed. Everything that it makes lies below memgroup-lab-PID, which is removed at the end, however it ends. The next run removes
# what a killed one has left.
set -eu

find_root() {
    while read -r _ place kind options _; do
        case $kind in
            cgroup) case ",$options," in *,memory,*) echo "$place"; return ;; esac ;;
            cgroup2) if grep -qw memory "$place/cgroup.controllers"; then echo "$place"; return; fi ;;
        esac
    done < /proc/mounts
    echo "no memory cgroup controller is mounted" >&2
    return 1
}

percpu() {
    awk '/^Percpu:/ { print $2; found = 1 } END { exit !found }' /proc/meminfo
}

# A cgroup may be busy for a moment after the last one below it went.
remove_all() {
    [ -d "$1" ] || return 0
    for _ in 1 2 3 4 5; do
        find "$1" -depth -type d -exec rmdir {} + 2> /dev/null && return 0
        sleep 0.1
    done
}

root=$(find_root)
for old in "$root"/memgroup-lab-[0-9]*; do
    kill -0 "${old##*-}" 2> /dev/null || remove_all "$old"
done

own=$root/memgroup-lab-$$
trap 'remove_all "$own"' EXIT
trap 'exit 130' HUP INT TERM
percpu
mkdir "$own"
if [ -f "$own/cgroup.subtree_control" ]; then echo "+memory" > "$own/cgroup.subtree_control"; fi
cd "$own"
beside() { for i in $(seq 1 "$1"); do for j in $(seq 1 "$2"); do echo "cg_${i}_$j"; done; done; }
for i in $(seq 1 "$1"); do
    echo "cg_$i"
    for j in $(seq 1 "$2"); do echo "cg_${i}_$j"; done
done | xargs mkdir
percpu
beside "$1" "$2" | xargs rmdir
sleep "$3"
percpu
cd "$root"
remove_all "$own"
sleep "$3"
percpu
