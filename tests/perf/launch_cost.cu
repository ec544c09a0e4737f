// What a launch costs its thread, by what is asked of it: the pieces of the host time of an operation of the
// cuda executor. Kernels return at once. Every figure is the median of rounds that go through all of the
// pieces in turns, so that a slow moment of the machine falls on none of them alone. Run it on an idle GPU:
//   launch_cost [rounds]
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr int kThreads = 384, kCtas = 132, kCalls = 100;
constexpr std::size_t kSharedBytes = 200 << 10;  // of a persistent kernel

template <int kBytes>
struct Parameters {
  char bytes[kBytes];
};
template <int kBytes>
__global__ void nothing(const __grid_constant__ Parameters<kBytes>) {}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "launch_cost: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

struct Launch {
  bool cooperative = false;
  unsigned cluster = 1;
  std::size_t shared_bytes = kSharedBytes;
};

/// Queues the kernel once, as launch_cooperative() does.
template <int kBytes>
std::function<void()> launch(const Launch& how) {
  const void* const kernel = reinterpret_cast<const void*>(&nothing<kBytes>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "shared memory");
  return [how, kernel] {
    static Parameters<kBytes> parameters{};
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {how.cluster, 1, 1};
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = how.cooperative ? 1 : 0;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kCtas);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = how.shared_bytes;
    config.attrs = attributes + (how.cluster > 1 ? 0 : 1);
    config.numAttrs = (how.cluster > 1 ? 1 : 0) + (how.cooperative ? 1 : 0);
    void* arguments[] = {&parameters};
    check(cudaLaunchKernelExC(&config, kernel, arguments), "launch");
  };
}

/// A function of the driver.
template <typename Function>
Function driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), name);
  return reinterpret_cast<Function>(function);
}

/// launch<kBytes>({true, 2}) without the runtime.
template <int kBytes>
std::function<void()> launch_by_driver() {
  cudaFunction_t function = nullptr;
  check(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&nothing<kBytes>)), "kernel");
  return [function, call = driver<decltype(&cuLaunchKernelEx)>("cuLaunchKernelEx")] {
    static Parameters<kBytes> parameters{};
    CUlaunchAttribute attributes[2]{};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[0].value.clusterDim = {2, 1, 1};
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[1].value.cooperative = 1;
    CUlaunchConfig config{};
    config.gridDimX = kCtas;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = kThreads;
    config.sharedMemBytes = kSharedBytes;
    config.attrs = attributes;
    config.numAttrs = 2;
    void* arguments[] = {&parameters};
    check(static_cast<cudaError_t>(call(&config, function, arguments, nullptr)), "launch by the driver");
  };
}

/// A map of a matrix of 4096 x 4096, as an operand has it.
std::function<void()> encode() {
  void* memory = nullptr;
  check(cudaMalloc(&memory, 2 * 4096 * 4096), "memory");
  return [memory, call = driver<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled")] {
    const cuuint64_t extents[] = {4096, 4096}, strides[] = {8192};
    const cuuint32_t box[] = {64, 128}, steps[] = {1, 1};
    CUtensorMap map;
    if (call(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, memory, extents, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
      std::exit(1);
  };
}

struct Piece {
  std::string what;
  std::function<void()> call;
  std::vector<double> idle = {},
                      behind = {};  ///< us a call, by round: on an idle GPU, behind the calls before
};

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void measure(Piece& piece) {
  std::vector<double> alone;
  for (int call = 0; call < kCalls; ++call) {
    check(cudaDeviceSynchronize(), "synchronize");
    const double begin = now_us();
    piece.call();
    alone.push_back(now_us() - begin);
  }
  check(cudaDeviceSynchronize(), "synchronize");
  const double begin = now_us();
  for (int call = 0; call < kCalls; ++call) piece.call();
  piece.behind.push_back((now_us() - begin) / kCalls);
  piece.idle.push_back(median(alone));
}

}  // namespace

int main(int count, char** words) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("launch_cost: no GPU");
    return 77;
  }
  const int rounds = count > 1 ? std::atoi(words[1]) : 21;
  int device = 0;
  std::vector<Piece> pieces{
      {"64 bytes of parameters, no shared memory", launch<64>({.shared_bytes = 0})},
      {"64 bytes of parameters", launch<64>({})},
      {"1536 bytes of parameters, as GEMM+RS and GEMM+AR", launch<1536>({})},
      {"2688 bytes of parameters, as AG+GEMM", launch<2688>({})},
      {"64 bytes, clusters of two", launch<64>({.cluster = 2})},
      {"64 bytes, cooperative", launch<64>({.cooperative = true})},
      {"1536 bytes, cooperative in clusters of two: GEMM+RS, GEMM+AR", launch<1536>({true, 2})},
      {"2688 bytes, cooperative in clusters of two: AG+GEMM", launch<2688>({true, 2})},
      {"the same by cuLaunchKernelEx", launch_by_driver<2688>()},
      {"cuTensorMapEncodeTiled", encode()},
      {"cudaGetDevice", [&] { check(cudaGetDevice(&device), "device"); }},
      {"cudaSetDevice of the current one", [] { check(cudaSetDevice(0), "device"); }},
  };
  for (Piece& piece : pieces) piece.call();  // loads the kernels
  for (int round = 0; round < rounds; ++round) {
    for (Piece& piece : pieces) measure(piece);
  }
  std::puts("us of the host, p50: on an idle GPU, behind 100 of its kind");
  for (Piece& piece : pieces)
    std::printf("%6.2f %6.2f  %s\n", median(piece.idle), median(piece.behind), piece.what.c_str());
  return 0;
}
