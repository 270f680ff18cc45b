/* What the files of the simulated libnvidia-ml.so.1 share. Lines are those of nvml.h 12.9. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include "sim.h"

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
typedef struct Device *Device;

/* Handles are numbers: devices from 1 on, MIG instances (SIMGPU_MIG) from 1 + MAX_DEVICES on. */
static inline bool is_part(Device device) { return (intptr_t)device > MAX_DEVICES; }
static inline int index_of(Device device) { return (int)(((intptr_t)device - 1) % MAX_DEVICES); }
static inline Device handle(int index, bool part) { return (Device)(intptr_t)(1 + index + (part ? MAX_DEVICES : 0)); }
static inline bool valid(Device device) { return device && index_of(device) < config()->devices && (!is_part(device) || config()->mig); }
/* SIMGPU_FAULTS for a function by its name without its version. */
int nvml_fault(const char *function);
#define DEVICE() do { int fault_ = nvml_fault(__func__); if (fault_) return fault_; if (!valid(device)) return INVALID_ARGUMENT; } while (0)
#define U __attribute__((unused))
/* NVML_STRUCT_VERSION: the size of the structure, and the version in the highest byte. */
#define STRUCT_VERSION(type, version) ((unsigned)(sizeof(type) | (version) << 24))

int nvml_copy(char *out, unsigned length, const char *text);

#endif
