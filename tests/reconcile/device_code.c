/* A library with a section of 8 MiB that looks like GPU code. */
__attribute__((section(".nv_fatbin"))) const char gpu_code[8 << 20] = {1};
