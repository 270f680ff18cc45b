/* Functions whose names begin like hooked names, but are not hooked. */
int cudnnCreate(void) { return 1; }
int cublasCreate_v2(void) { return 2; }
int cufftPlan1d(void) { return 3; }
int cuMemAllocX(void) { return 4; }
int cuMemAlloc_v2_(void) { return 5; }
int nvmlInit_v2X(void) { return 6; }
int cu(void) { return 7; }
