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

# debian_packages SUITE FOLDER COMMAND...: runs apt-get with the command, such as download, for the packages of a release of Debian.
# They come from the server of this machine's own packages. What it needs to know is in FOLDER. Installs nothing. The variable
# architecture names another architecture than that of this machine.
debian_packages() {
    local suite=$1 folder=$2 server
    shift 2
    need apt-get "the packages come from Debian"
    server=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
    [[ -n $server ]] || fail "apt-get names no server of packages (apt-get update)"
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    : > "$folder/status"
    echo "deb $server $suite main" > "$folder/sources.list"
    local apt=(apt-get -qq -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$folder/lists" -o Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache"
        -o APT::Get::List-Cleanup=0 -o APT::Sandbox::User=root
        ${architecture:+-o APT::Architecture=$architecture -o APT::Architectures=$architecture})
    "${apt[@]}" update && "${apt[@]}" "$@"
}
