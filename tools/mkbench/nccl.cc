#include "tools/mkbench/nccl.h"

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/library.h"

namespace mkernel::bench {
namespace {

// What of NCCL 2's binary interface is used here (its nccl.h is not packaged with every distribution).
using Code = int;  // ncclResult_t; 0 = success
constexpr int kFloat16 = 6, kBfloat16 = 9;
constexpr int kSum = 0;

int type_of(DataType type) {
  return type == DataType::kBf16 ? kBfloat16 : kFloat16;
}

}  // namespace

struct Nccl::Api {
  struct UniqueId {
    char internal[128];
  };
  Code (*get_unique_id)(UniqueId*);
  Code (*init_rank)(void** comm, int ranks, UniqueId id, int rank);
  Code (*destroy)(void* comm);
  Code (*all_gather)(const void*, void*, std::size_t, int, void*, CUstream_st*);
  Code (*reduce_scatter)(const void*, void*, std::size_t, int, int, void*, CUstream_st*);
  Code (*all_reduce)(const void*, void*, std::size_t, int, int, void*, CUstream_st*);
  const char* (*text)(Code);

  static Result<Api> load() {
    auto library = Library::open({"libnccl.so.2"});
    if (!library.ok()) return library.status();
    Api api{};
    MK_RETURN_IF_ERROR(library->find("ncclGetUniqueId", api.get_unique_id));
    MK_RETURN_IF_ERROR(library->find("ncclCommInitRank", api.init_rank));
    MK_RETURN_IF_ERROR(library->find("ncclCommDestroy", api.destroy));
    MK_RETURN_IF_ERROR(library->find("ncclAllGather", api.all_gather));
    MK_RETURN_IF_ERROR(library->find("ncclReduceScatter", api.reduce_scatter));
    MK_RETURN_IF_ERROR(library->find("ncclAllReduce", api.all_reduce));
    MK_RETURN_IF_ERROR(library->find("ncclGetErrorString", api.text));
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

void Nccl::Destroy::operator()(void* comm) const {
  (void)api->destroy(comm);
}

Result<Nccl> Nccl::join(Group& group, int device) {
  MK_RETURN_IF_ERROR(use_gpu(device));
  auto api = Api::get();
  if (!api.ok()) return api.status();
  Api::UniqueId id{};
  if (group.rank() == 0) MK_RETURN_IF_ERROR((*api)->status((*api)->get_unique_id(&id), "ncclGetUniqueId"));
  auto all = group.exchange(std::as_bytes(std::span(&id, 1)));
  if (!all.ok()) return all.status();
  std::memcpy(&id, (*all)[0].data(), sizeof id);
  void* comm = nullptr;
  MK_RETURN_IF_ERROR((*api)->status(
      (*api)->init_rank(&comm, static_cast<int>(group.world_size()), id, static_cast<int>(group.rank())),
      "ncclCommInitRank"));
  Nccl nccl;
  nccl.comm_ = {comm, Destroy{*api}};
  return Result<Nccl>(std::move(nccl));
}

Status Nccl::all_gather(const void* from, void* to, std::uint64_t count, DataType type,
                        CUstream_st* stream) const {
  const Api& api = *comm_.get_deleter().api;
  return api.status(api.all_gather(from, to, count, type_of(type), comm_.get(), stream), "ncclAllGather");
}

Status Nccl::reduce_scatter(const void* from, void* to, std::uint64_t count, DataType type,
                            CUstream_st* stream) const {
  const Api& api = *comm_.get_deleter().api;
  return api.status(api.reduce_scatter(from, to, count, type_of(type), kSum, comm_.get(), stream),
                    "ncclReduceScatter");
}

Status Nccl::all_reduce(const void* from, void* to, std::uint64_t count, DataType type,
                        CUstream_st* stream) const {
  const Api& api = *comm_.get_deleter().api;
  return api.status(api.all_reduce(from, to, count, type_of(type), kSum, comm_.get(), stream),
                    "ncclAllReduce");
}

}  // namespace mkernel::bench
