#!/bin/sh
# Stops a demo that was kept running: workers, server, and the directory of this file.
set -u
directory=$(cd "$(dirname "$0")" && pwd) || exit 1
cd "$directory" || exit 1

# The process id may meanwhile belong to another process.
ours() {
    case $(readlink "/proc/$1/exe" 2> /dev/null || ps -o comm= -p "$1" 2> /dev/null) in
        "$2" | */"$2" | */"$2 (deleted)") return 0 ;;
        *) return 1 ;;
    esac
}

end() {
    ours "$1" "$2" || return 0
    kill "-$3" "$1"
    tries=0
    while ours "$1" "$2" && [ "$tries" -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    if ours "$1" "$2"; then
        echo "process $1 ($2) does not end; keeping $directory" >&2
        exit 1
    fi
}

while read -r pid; do
    end "$pid" worker TERM
done < workers
if [ -f data/postmaster.pid ]; then
    read -r pid < data/postmaster.pid
    end "$pid" postgres INT
fi
cd / && rm -rf "$directory"
echo "stopped; removed $directory"
