/*
 * fatbin_none.c - a build without nvcc has no kernels.
 */
#include "gpu/fatbin.h"

const void *const gpu_fatbin = NULL;
const uint64_t gpu_fatbin_len = 0;
