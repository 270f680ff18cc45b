/* A stand-in cuRAND. ONNX Runtime's CUDA provider is linked with the library and uses none of its functions. */
#define API __attribute__((visibility("default")))

API int curandGetVersion(int *version) { *version = 10300; return 0; }
