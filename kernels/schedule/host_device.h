// For the pure functions that plans on the host and kernels on the device share.
#pragma once

#ifdef __CUDACC__
#define MK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MK_HOST_DEVICE
#endif
