// NCCL, loaded when a benchmark compares with it. Plain C++: neither CUDA's nor NCCL's header needed.
#pragma once

#include <mkernel/client.h>

#include <cstdint>
#include <memory>

#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::bench {

class Nccl {
 public:
  /// **Collective**: a communicator of the ranks of `group`, this one on GPU `device`. kUnavailable when no
  /// libnccl.so.2 can be loaded or mkbench was built without CUDA, kInternal with NCCL's words otherwise.
  static Result<Nccl> join(Group& group, int device);

  /// `count` elements of every rank, in rank order, into `to`. All asynchronous, as NCCL's.
  Status all_gather(const void* from, void* to, std::uint64_t count, DataType type,
                    CUstream_st* stream) const;
  /// Sums over ranks; rank r keeps elements [r * count, +count).
  Status reduce_scatter(const void* from, void* to, std::uint64_t count, DataType type,
                        CUstream_st* stream) const;
  /// Sums over ranks of `count` elements.
  Status all_reduce(const void* from, void* to, std::uint64_t count, DataType type,
                    CUstream_st* stream) const;

 private:
  struct Api;
  struct Destroy {
    const Api* api;
    void operator()(void* comm) const;
  };
  Nccl() = default;

  std::unique_ptr<void, Destroy> comm_{nullptr, Destroy{nullptr}};
};

}  // namespace mkernel::bench
