/* A CUDA driver that does nothing and says so: what Triton's helpers call when they load and launch a kernel.
 *
 * Every function succeeds. Loads and launches are counted in the file that FAKE_LIBCUDA_LOG names, a line each:
 *   load MACHINE OSABI FLAGS     the fields of the ELF header that tell what the code is for
 *   launch X Y Z THREADS         the grid, and the threads of a block
 * FAKE_LIBCUDA_ARCH is the compute capability that the one device has, without its point, and FAKE_LIBCUDA_NAME its name.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_IMAGE = 200 };

static void log_line(const char *format, ...) {
  const char *path = getenv("FAKE_LIBCUDA_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file)
    return;
  va_list values;
  va_start(values, format);
  vfprintf(file, format, values);
  va_end(values);
  fclose(file);
}

/* One context, one device, one module, one function: any address that is not null will do. */
static int a_context, a_module, a_function;

int cuInit(unsigned flags) { return OK; }
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, OK; }
int cuDeviceGetName(char *name, int length, int device) {
  const char *given = getenv("FAKE_LIBCUDA_NAME");
  snprintf(name, length, "%s", given ? given : "Fake GPU");
  return OK;
}
int cuCtxGetCurrent(void **context) { return *context = &a_context, OK; }
int cuCtxSetCurrent(void *context) { return OK; }
int cuCtxGetDevice(int *device) { return *device = 0, OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &a_context, OK; }
int cuCtxGetLimit(size_t *value, int limit) { return *value = 1 << 20, OK; }
int cuCtxSetLimit(int limit, size_t value) { return OK; }
int cuGetErrorString(int error, const char **text) { return *text = "a fake driver's error", OK; }
int cuModuleUnload(void *module) { return OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = &a_function, OK; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return OK; }
int cuFuncSetCacheConfig(void *function, int config) { return OK; }
int cuStreamIsCapturing(void *stream, int *status) { return *status = 0, OK; }
int cuOccupancyMaxActiveClusters(int *count, void *function, const void *config) { return *count = 1, OK; }
int cuTensorMapEncodeTiled(void *map, ...) { return OK; }
int cuTensorMapEncodeIm2col(void *map, ...) { return OK; }

int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
  memcpy(value, &pointer, sizeof pointer); /* host memory passes for the device's */
  return OK;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : 0; /* threads of a block; nothing is spilled, whatever else is asked */
  return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  const char *text = getenv("FAKE_LIBCUDA_ARCH");
  int arch = text ? atoi(text) : 90;
  switch (attribute) { /* numbers of CUdevice_attribute */
  case 10: *value = 32; break;          /* warp size */
  case 12: *value = 65536; break;       /* registers of a block */
  case 16: *value = 132; break;         /* multiprocessors */
  case 75: *value = arch / 10; break;   /* major */
  case 76: *value = arch % 10; break;   /* minor */
  case 81: *value = 233472; break;      /* shared memory of a multiprocessor */
  case 97: *value = 232448; break;      /* shared memory that a block can opt in to */
  default: *value = 1;
  }
  return OK;
}

int cuModuleLoadData(void **module, const void *image) {
  const unsigned char *bytes = image;
  uint16_t machine;
  uint32_t flags;
  if (memcmp(bytes, "\177ELF", 4) != 0)
    return INVALID_IMAGE;
  memcpy(&machine, bytes + 18, sizeof machine);
  memcpy(&flags, bytes + 48, sizeof flags);
  log_line("load %u %u %u\n", machine, bytes[7], flags);
  *module = &a_module;
  return OK;
}

int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) {
  unsigned sizes[4]; /* CUlaunchConfig begins with the grid and the block */
  memcpy(sizes, config, sizeof sizes);
  log_line("launch %u %u %u %u\n", sizes[0], sizes[1], sizes[2], sizes[3]);
  return OK;
}
