# Functions and variables that the scripts share. This file is sourced.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${VRAMSHIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vramshim}
frameworks=$cache/frameworks

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    bold=$'\e[1m' plain=$'\e[0m'
else
    bold='' plain=''
fi

say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }

# fail MESSAGE: prints what is wrong and what to do, and exits with 1.
fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# refuse MESSAGE: prints a message about wrong arguments, and exits with 2.
refuse() {
    printf '%s: %s (see --help)\n' "$(basename "$0")" "$*" >&2
    exit 2
}

need() {
    command -v "$1" > /dev/null || fail "$1 is not installed; $2"
}

# build_release [ARGUMENT...]: builds with optimisation, and lets the library bind itself at its first use (src/preload/defer.rs).
build_release() {
    local built=${CARGO_TARGET_DIR:-$root/target}/release
    cargo build --release "$@"
    "$built/vramshim-defer" "$built/libvramshim.so" > /dev/null
}

# Prints the path of the python with the cached frameworks. Prints nothing and fails if the frameworks are not set up.
framework_python() {
    [[ -x $frameworks/bin/python && -e $frameworks/.vramshim-complete ]] && echo "$frameworks/bin/python"
}

# Succeeds if this machine has an NVIDIA driver with a device.
gpu_present() {
    [[ -e /dev/nvidiactl || -e /dev/nvidia0 ]] && command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep -q '^GPU'
}

# Prints the path of a Chromium. Prints nothing and fails if there is none.
find_chromium() {
    local name
    for name in ${VRAMSHIM_CHROMIUM:-} chromium chromium-browser google-chrome chrome headless_shell; do
        command -v "$name" && return
    done
    return 1
}
