#!/bin/sh
# A real browser reads the status pages: looks for one, takes Debian's chromium-headless-shell apart
# into build/browser where there is none, with the libraries that this machine lacks, so that
# nothing is installed. LAREDO_TEST_BROWSER is the program, if elsewhere.
set -eu

there=${LAREDO_TEST_BROWSER:-build/browser/run}

is_there() {
    "$there" --version >/dev/null 2>&1
}

unpack() {
    rm -rf build/browser
    mkdir -p build/browser
    (
        cd build/browser
        # apt as root reads package lists that a fresh machine hasn't got.
        apt-cache show chromium-headless-shell >/dev/null 2>&1 || apt-get update -qq
        # Each line is a URI, a file's name, its size and hash; of packages that aren't installed.
        missing=$(apt-get install --print-uris -qq --no-install-recommends chromium-headless-shell |
            sed "s/^[^ ]* \([^_ ]*\)_.*/\1/")
        # shellcheck disable=SC2086
        apt-get download -qq $missing 2>/dev/null
        for package in *.deb; do
            dpkg-deb -x "$package" .
        done
        rm -f ./*.deb
        libraries=$(find "$PWD/usr/lib" -name '*.so*' -exec dirname {} + | sort -u | paste -sd:)
        cat >run <<RUN
#!/bin/sh
LD_LIBRARY_PATH=$libraries exec "$PWD/usr/lib/chromium/chromium-headless-shell" "\$@"
RUN
        chmod +x run
    )
}

if is_there; then
    exit 0
fi
if [ -z "${LAREDO_TEST_BROWSER:-}" ] && command -v apt-get >/dev/null; then
    echo "a browser is missing as $there; unpacking Debian's chromium-headless-shell there"
    if unpack && is_there; then
        exit 0
    fi
fi
cat >&2 <<MESSAGE
The tests of the status pages need a headless Chromium as $there. Get one and run this again:
  Debian           apt-get install chromium-headless-shell
  elsewhere        https://googlechromelabs.github.io/chrome-for-testing/ (chrome-headless-shell)
and set LAREDO_TEST_BROWSER to the program.
MESSAGE
exit 1
