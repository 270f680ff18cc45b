// Reads the length in a damaged message, 962 GB, into a string and a vector, as servers do.
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

int main()
{
    volatile unsigned long long length = 0xe0060b0000;
    int survived = 0;
    try {
        std::vector<char> value(length);
        std::printf("%zu\n", value.size());
    } catch (const std::bad_alloc &) {
        survived++;
    }
    try {
        std::string value;
        value.reserve(length);
        std::printf("%zu\n", value.capacity());
    } catch (const std::bad_alloc &) {
        survived++;
    }
    std::printf("survived %d\n", survived);
    return survived == 2 ? 0 : 1;
}
