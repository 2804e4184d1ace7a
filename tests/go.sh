#!/bin/sh
# The Connect client of the tests is in Go: looks for Go 1.22 or later, installs it with apt where it
# may, and downloads the modules that the client's go.sum names, so that the tests need no network.
set -eu
client=$(dirname "$0")/fanout/serving/connect/goclient

version() {
    go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p'
}

is_there() {
    found=$(version || true)
    [ "${found:-0}" -ge 22 ]
}

install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    for package in golang-go golang-1.24 golang-1.23 golang-1.22; do
        apt-get install -y -qq --no-install-recommends "$package" || continue
        # A release beside Debian's own isn't in PATH.
        there=/usr/lib/go-${package#golang-}/bin/go
        [ ! -x "$there" ] || ln -sf "$there" /usr/local/bin/go
        ! is_there || return 0
    done
    return 1
}

if ! is_there; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Go 1.22 or later is missing (found: 1.${found:-none}); installing it with apt-get"
        install || true
    fi
    if ! is_there; then
        cat >&2 <<MESSAGE
The test of the Connect port needs Go 1.22 or later (found: 1.${found:-none}). Install one and run this again:
  Debian 13, Ubuntu   sudo apt-get install golang-go
  Fedora              sudo dnf install golang
  macOS               brew install go
or put one that is there into PATH.
MESSAGE
        exit 1
    fi
fi
cd "$client"
go mod download
