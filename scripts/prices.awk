# Makes a table of prices (src/prices/prices.toml) from what the probe `prices` of tests/assumptions prints: lines
# | call | size | median | least |, with times in microseconds. The parts for each call and for the size come from the
# line through the smallest and the largest size. Fails if a call was not measured.
BEGIN { FS = " *[|] *" }

# 0 for text that is no size.
function megabytes(text) {
    split(text, word, " ")
    return word[2] == "GiB" ? word[1] * 1024 : word[2] == "MiB" ? word[1] : 0
}

/^on: / { print "# Measured " $0 }

NF >= 5 {
    call = $2; us = $4 + 0; size = megabytes($3)
    if (!size) { other[call] = us; next }
    if (size == 128) at_128[call] = us
    if (!(call in smallest) || size < smallest[call]) { smallest[call] = size; at_smallest[call] = us }
    if (!(call in largest) || size > largest[call]) { largest[call] = size; at_largest[call] = us }
}

function need(call) {
    if (call in smallest && smallest[call] < largest[call]) return
    print "prices.awk: the probe measured no " call " of two sizes" > "/dev/stderr"
    failed = 1
    exit 1
}

function by_size(name, call,    per_gib, base) {
    need(call)
    per_gib = (at_largest[call] - at_smallest[call]) / (largest[call] - smallest[call]) * 1024
    if (per_gib < 0) per_gib = 0
    base = at_smallest[call] - per_gib * smallest[call] / 1024
    if (base < 0) base = 0
    printf "%s_us = %.3g\n%s_us_per_gib = %.4g\n", name, base, name, per_gib
}

function smallest_of(name, call) { need(call); printf "%s = %.4g\n", name, at_smallest[call] }

END {
    if (failed) exit 1
    by_size("create", "cuMemCreate")
    smallest_of("map_us", "cuMemMap")
    smallest_of("access_us_small", "cuMemSetAccess")
    printf "access_us_large = %.4g\n", at_128["cuMemSetAccess"]
    smallest_of("unmap_us", "cuMemUnmap")
    by_size("release", "cuMemRelease")
    by_size("allocate", "cuMemAlloc")
    by_size("free", "cuMemFree")
    printf "event_us = %.3g\n", other["cuEventRecord"]
    print "# reserve_us and unreserve_us were not measured, and keep their prices."
}
