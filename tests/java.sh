#!/bin/sh
# Spark needs a Java of version 17 or later: looks for it, installs it with apt where it may.
set -eu

version() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'
}

is_there() {
    found=$(version || true)
    [ "${found:-0}" -ge 17 ]
}

install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    for release in 21 17; do
        apt-get install -y -qq --no-install-recommends "openjdk-$release-jre-headless" && return
    done
}

if is_there; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Java 17 or later is missing (found: ${found:-none}); installing it with apt-get"
    if install && is_there; then
        exit 0
    fi
fi
cat >&2 <<MESSAGE
The tests of laredo_spark need Java 17 or later (found: ${found:-none}). Install one and run this again:
  Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless
  Fedora           sudo dnf install java-17-openjdk-headless
  macOS            brew install openjdk@17
or set JAVA_HOME to one that is there.
MESSAGE
exit 1
