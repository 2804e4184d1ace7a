#!/bin/sh
# promtool and Prometheus try the alerts: looks for them, takes Debian's package apart into
# build/prometheus where there are none, so that no service is installed. LAREDO_TEST_PROMETHEUS is
# the directory of the programs, if elsewhere.
set -eu

there=${LAREDO_TEST_PROMETHEUS:-build/prometheus/usr/bin}

is_there() {
    "$there/promtool" --version >/dev/null 2>&1 && "$there/prometheus" --version >/dev/null 2>&1
}

unpack() {
    mkdir -p build/prometheus
    (
        cd build/prometheus
        rm -f prometheus_*.deb
        # apt as root reads package lists that a fresh machine hasn't got.
        apt-get download -qq prometheus 2>/dev/null || { apt-get update -qq && apt-get download -qq prometheus; }
        dpkg-deb -x prometheus_*.deb .
        rm -f prometheus_*.deb
    )
}

if is_there; then
    exit 0
fi
if [ -z "${LAREDO_TEST_PROMETHEUS:-}" ] && command -v apt-get >/dev/null; then
    echo "Prometheus is missing in $there; unpacking Debian's package there"
    if unpack && is_there; then
        exit 0
    fi
fi
cat >&2 <<MESSAGE
The tests of the alerts need prometheus and promtool in $there. Get them and run this again:
  Debian, Ubuntu   apt-get install prometheus, then LAREDO_TEST_PROMETHEUS=/usr/bin
  elsewhere        https://prometheus.io/download/
and set LAREDO_TEST_PROMETHEUS to the directory of the programs.
MESSAGE
exit 1
