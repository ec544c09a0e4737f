// One rank of one operation on the user's files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mkernel/client.h"
#include "tools/mkrun/executor_array.h"
#include "tools/mkrun/operand.h"
#include "tools/mkrun/options.h"
#include "tools/mkrun/outputs.h"

namespace mkernel::mkrun {

/// A job reads its files before anything is connected, so that a mistake costs nobody else's time; plan()
/// then learns what only all ranks together know (m, sequence, experts) and creates the operation.
class Job {
 public:
  virtual ~Job() = default;
  virtual Status load(const Options& options) = 0;
  /// **Collective**.
  virtual Status plan(Group& group, const Options& options) = 0;
  virtual Result<Pending> launch(const ExecutorOptions& options) = 0;
  virtual const Planned& operation() const = 0;
  /// Writes what the last launch has left, for outputs.publish().
  virtual Status save(const Options& options, Outputs& outputs);

 protected:
  void make_out(std::vector<std::int64_t> shape);
  /// `at`: where the executor finds `values`, which stay where they are; null when there are none.
  template <class Value, class Pointer>
  Status place(const Options& options, std::vector<Value>& values, Pointer& at) {
    auto array = executor_array(values.data(), values.size() * sizeof(Value), options.device);
    if (!array.ok()) return array.status();
    at = static_cast<Pointer>((*array)->get());
    arrays_.push_back(std::move(*array));
    return {};
  }
  /// The same of what the operation writes: save() has it.
  template <class Value, class Pointer>
  Status place_result(const Options& options, std::vector<Value>& values, Pointer& at) {
    MK_RETURN_IF_ERROR(place(options, values, at));
    results_.push_back(arrays_.back().get());
    return {};
  }

  std::vector<std::int64_t> out_shape_;
  std::vector<std::uint16_t> out_;

 private:
  std::vector<std::unique_ptr<ExecutorArray>> arrays_;
  std::vector<ExecutorArray*> results_;
};

std::unique_ptr<Job> make_gemm_job();
std::unique_ptr<Job> make_moe_job();
std::unique_ptr<Job> make_attention_job();
std::unique_ptr<Job> make_backward_job();

/// **Collective**: what every rank says, by rank.
Result<std::vector<std::int64_t>> gather(Group& group, std::int64_t mine);

/// **Collective**: no two ranks write one file. Errors: kInvalidArgument, which names both ranks, on every
/// rank.
Status check_outputs(Group& group, const Outputs& outputs);

/// The total of `parts`, checked against what `wanted(rank, total)` says is each rank's share. `given` (0 =
/// none) is what the flag `--<name>` says the total is. Errors name the rank, its part and the wanted one;
/// every rank gets the same.
Result<std::int64_t> total_of(
    const std::vector<std::int64_t>& parts, const std::string& name, std::int64_t given,
    const std::function<std::int64_t(std::int64_t rank, std::int64_t total)>& wanted);

/// **Collective**. Of ring attention, of which this rank holds `mine` positions: those of all ranks. Errors:
/// they are not split as AttentionShape says, or are not --sequence.
Result<std::int64_t> sequence_of(Group& group, const Options& options, std::int64_t mine);

}  // namespace mkernel::mkrun
