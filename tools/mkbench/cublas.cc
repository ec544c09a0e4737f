#include "tools/mkbench/cublas.h"

#include <cstddef>
#include <string>
#include <utility>

#include "tools/mkbench/library.h"

namespace mkernel::bench {
namespace {

// What of cuBLAS's binary interface is used here, the same in CUDA 12 and 13 (its headers come with the
// library, which not every machine that builds this has).
using Code = int;      // cublasStatus_t; 0 = success
using Handle = void*;  // cublasHandle_t
constexpr int kNormal = 0, kTransposed = 1;
constexpr int kReal32F = 0, kReal16F = 2, kReal16Bf = 14;  // cudaDataType_t
constexpr int kCompute32F = 68;
constexpr int kDefaultAlgorithm = -1;

}  // namespace

struct Cublas::Api {
  Code (*create)(Handle*);
  Code (*destroy)(Handle);
  Code (*set_stream)(Handle, CUstream_st*);
  Code (*set_workspace)(Handle, void*, std::size_t);
  Code (*set_sm_target)(Handle, int);
  Code (*gemm)(Handle, int operation_a, int operation_b, int m, int n, int k, const void* alpha,
               const void* a, int type_a, int lda, const void* b, int type_b, int ldb, const void* beta,
               void* c, int type_c, int ldc, int compute, int algorithm);
  const char* (*text)(Code);

  static Result<Api> load() {
    auto library = Library::open({"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
    if (!library.ok()) return library.status();
    Api api{};
    MK_RETURN_IF_ERROR(library->find("cublasCreate_v2", api.create));
    MK_RETURN_IF_ERROR(library->find("cublasDestroy_v2", api.destroy));
    MK_RETURN_IF_ERROR(library->find("cublasSetStream_v2", api.set_stream));
    MK_RETURN_IF_ERROR(library->find("cublasSetWorkspace_v2", api.set_workspace));
    MK_RETURN_IF_ERROR(library->find("cublasSetSmCountTarget", api.set_sm_target));
    MK_RETURN_IF_ERROR(library->find("cublasGemmEx", api.gemm));
    MK_RETURN_IF_ERROR(library->find("cublasGetStatusString", api.text));
    return api;
  }
  static Result<const Api*> get() {
    static const Result<Api> api = load();
    if (!api.ok()) return api.status();
    return &api.value();
  }
  Status status(Code code, const char* what) const {
    if (code == 0) return {};
    return {StatusCode::kInternal, std::string(what) + ": " + text(code)};
  }
};

void Cublas::Destroy::operator()(void* handle) const {
  (void)api->destroy(handle);
}

Result<Cublas> Cublas::open(CUstream_st* stream) {
  auto api = Api::get();
  if (!api.ok()) return api.status();
  constexpr std::uint64_t kWorkspace = 64 << 20;
  auto workspace = GpuBuffer::allocate(kWorkspace);
  if (!workspace.ok()) return workspace.status();
  Cublas cublas;
  cublas.workspace_ = std::move(*workspace);
  Handle handle = nullptr;
  MK_RETURN_IF_ERROR((*api)->status((*api)->create(&handle), "cublasCreate"));
  cublas.handle_ = {handle, Destroy{*api}};
  MK_RETURN_IF_ERROR((*api)->status((*api)->set_stream(handle, stream), "cublasSetStream"));
  MK_RETURN_IF_ERROR((*api)->status((*api)->set_workspace(handle, cublas.workspace_.get(), kWorkspace),
                                    "cublasSetWorkspace"));
  return Result<Cublas>(std::move(cublas));
}

Status Cublas::target_sms(int sms) {
  const Api& api = *handle_.get_deleter().api;
  return api.status(api.set_sm_target(handle_.get(), sms), "cublasSetSmCountTarget");
}

Status Cublas::gemm(const GemmArguments& arguments, const GemmShape& shape) const {
  const Api& api = *handle_.get_deleter().api;
  const auto m = static_cast<int>(shape.m), n = static_cast<int>(shape.n), k = static_cast<int>(shape.k);
  const int type = shape.dtype == DataType::kBf16 ? kReal16Bf : kReal16F;
  const bool row_major = shape.b_layout == Layout::kRowMajor;
  const float one = 1, zero = 0;
  // Column-major c^T[n, m] = b^T x a^T.
  return api.status(api.gemm(handle_.get(), row_major ? kNormal : kTransposed, kNormal, n, m, k, &one,
                             arguments.b, type, row_major ? n : k, arguments.a, type, k, &zero, arguments.c,
                             type, n, kCompute32F, kDefaultAlgorithm),
                    "cublasGemmEx");
}

}  // namespace mkernel::bench
