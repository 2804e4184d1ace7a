#!/bin/sh
# Tests run on PostgreSQL 15 too, Debian's, for the extensions and the age: looks for it, installs
# it with apt where it may. LAREDO_TEST_POSTGRES15 is the directory of its programs, if elsewhere.
set -eu

bin=${LAREDO_TEST_POSTGRES15:-/usr/lib/postgresql/15/bin}

is_there() {
    "$bin/postgres" --version 2>/dev/null | grep -q ' 15\.'
}

install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # The package would make a cluster and start it.
    apt-get install -y -qq --no-install-recommends postgresql-common
    sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' \
        /etc/postgresql-common/createcluster.conf
    apt-get install -y -qq --no-install-recommends postgresql-15
}

if is_there; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "PostgreSQL 15 is missing in $bin; installing it with apt-get"
    if install && is_there; then
        exit 0
    fi
fi
cat >&2 <<MESSAGE
The tests need PostgreSQL 15 with its contrib extensions in $bin. Install it and run this again:
  Debian, Ubuntu   sudo apt-get install postgresql-15   (not there: https://wiki.postgresql.org/wiki/Apt)
  Fedora           see https://www.postgresql.org/download/linux/redhat/
  macOS            brew install postgresql@15
or set LAREDO_TEST_POSTGRES15 to the directory of the programs of one that is there.
MESSAGE
exit 1
