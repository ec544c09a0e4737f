// A stream of the current GPU, launches captured in graphs, and the time that each of them takes. Plain C++:
// no CUDA header needed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "proto/abi/status.h"

struct CUstream_st;
struct CUgraphExec_st;

namespace mkernel::bench {

/// Makes `device` the current GPU of the calling thread.
Status use_gpu(int device);

class GpuStream {
 public:
  static Result<GpuStream> create();
  CUstream_st* get() const { return stream_.get(); }
  /// Until everything that was queued is done.
  Status synchronize() const;
  /// Runs `launch(i)` for i in [0, count), back to back, and returns how many milliseconds lie between the
  /// end of each and the end of the one before it; what was queued earlier comes before the first.
  /// Synchronous.
  Result<std::vector<double>> time(int count, const std::function<Status(int)>& launch) const;

 private:
  struct Destroy {
    void operator()(CUstream_st* stream) const;
  };
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

/// What was queued on a stream, to be queued again by one call.
class GpuGraph {
 public:
  /// `queue` queues on `stream` without waiting for it.
  static Result<GpuGraph> capture(const GpuStream& stream, const std::function<Status()>& queue);
  Status launch(const GpuStream& stream) const;

 private:
  struct Destroy {
    void operator()(CUgraphExec_st* graph) const;
  };
  std::unique_ptr<CUgraphExec_st, Destroy> graph_;
};

}  // namespace mkernel::bench
