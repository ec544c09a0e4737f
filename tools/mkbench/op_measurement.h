// How an operation of the cuda executor is measured, whatever it computes: graph-captured launches on sets of
// operands, new inputs before every round, verified outputs after it.
#pragma once

#include <mkernel/client.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_stream.h"
#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/row.h"

namespace mkernel::bench {

/// One thing that is timed: a graph per set.
struct Side {
  std::vector<GpuGraph> graphs;
  std::vector<double> milliseconds;  ///< per iteration, of the slowest rank
};

class OpMeasurement {
 public:
  OpMeasurement(Group& group, OpCudaOptions options) : group_(group), options_(std::move(options)) {}
  virtual ~OpMeasurement() = default;
  OpMeasurement(const OpMeasurement&) = delete;
  OpMeasurement& operator=(const OpMeasurement&) = delete;

  /// **Collective**. First launches, rounds, and the timeline where one is wanted. The derived class is
  /// ready.
  Result<Row> measure();

 protected:
  /// What every rank tells the others of one set after a round.
  struct Outcome {
    ProductCheck check;
    std::uint64_t digest = 0;  ///< the same on all ranks
  };
  /// Timed launches of one round at most: what a rank tells the others fits one exchange.
  static constexpr int kMostPerRound = 8;

  /// Makes the device current, takes this rank's share of it, makes the stream.
  Status begin();

  virtual Planned& operation() = 0;
  virtual Status enqueue(int set, const ExecutorOptions& options) = 0;
  virtual int sets() const = 0;
  /// Inputs of `iteration` into the set, its output poisoned. Asynchronous.
  virtual Status fill(int set, std::uint64_t iteration) = 0;
  /// Of what the last launch on the set left. Synchronous.
  virtual Result<Outcome> judge(int set) = 0;
  /// {op, m, n, k, dtype, ...} and the text of the shape.
  virtual void describe(Row& row) const = 0;
  /// Sides that the operation is compared with: captured once, timed in every round.
  virtual Status capture_baselines() { return {}; }
  virtual Status time_baselines() { return {}; }
  virtual void finish(Row&) const {}

  Status capture(Side& side, const std::function<Status(int)>& queue);
  Status time(Side& side);
  Group& group() const { return group_; }
  const OpCudaOptions& options() const { return options_; }
  const GpuStream& stream() const { return stream_; }

 private:
  Status take_share();
  Status first_launches(Row& row);
  Status round(Row& row);
  Status trace(Row& row);
  Status fill_all();
  Status verify(Row& row);
  int per_round() const { return sets() - 1; }
  template <typename T>
  Result<std::vector<T>> from_all(const T& mine);

  Group& group_;
  OpCudaOptions options_;
  GpuStream stream_;
  Side ours_;
  std::uint64_t iteration_ = 0;
};

}  // namespace mkernel::bench
