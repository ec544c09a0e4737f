#include "tools/mkbench/gemm_floor.h"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>

#include "kernels/base/lent_workspace.h"
#include "kernels/base/views.h"
#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/make.h"

namespace mkernel::bench {
namespace {

/// A group of one rank in private memory: nothing leaves it, so no daemon is needed.
class LonelyGroup {
 public:
  LonelyGroup() {
    abi::GroupSegment layout{};
    const std::uint64_t bytes = abi::layout_group(layout, 1, 0, 8, 1);
    layout.node_count = 1;
    memory_ = Buffer(new (std::align_val_t{64}) std::byte[bytes]());
    view_.session = &session_;
    view_.segment = new (memory_.get()) abi::GroupSegment(layout);
    view_.rings.push_back({&slot_, 0, &session_.head(abi::RingWriter::kThreads, 0).tail, &head_});
  }
  const kernels::GroupView& view() const { return view_; }
  kernels::SymmetricView workspace(std::uint64_t bytes) {
    workspaces_.emplace_back(new (std::align_val_t{64}) std::byte[bytes]());
    std::byte* mine = workspaces_.back().get();
    return {0, bytes, {mine}, mine};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  using Buffer = std::unique_ptr<std::byte[], Free>;

  abi::SessionSegment session_{};
  abi::WorkSlot slot_{};
  std::atomic<std::uint64_t> head_{0};
  Buffer memory_;
  std::vector<Buffer> workspaces_;
  kernels::GroupView view_;
};

struct Operands {
  explicit Operands(const GemmShape& shape)
      : a(static_cast<std::size_t>(shape.m * shape.k)),
        b(static_cast<std::size_t>(shape.k * shape.n)),
        c(static_cast<std::size_t>(shape.m * shape.n)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    for (auto* matrix : {&a, &b}) {
      for (float& value : *matrix) value = uniform(random);
    }
  }
  std::vector<float> a, b, c;
};

/// GFLOP/s of the median of `repeats` calls, after one that does not count.
double gflops(const GemmShape& shape, int repeats, const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i > 0) seconds.push_back(took.count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return 2e-9 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k) /
         seconds[static_cast<std::size_t>(repeats) / 2];
}

double measure_blas(const GemmShape& shape, int repeats, Operands& operands) {
  const bool row_major = shape.b_layout == Layout::kRowMajor;
  const auto m = static_cast<int>(shape.m), n = static_cast<int>(shape.n), k = static_cast<int>(shape.k);
  return gflops(shape, repeats, [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, row_major ? CblasNoTrans : CblasTrans, m, n, k, 1.0F,
                operands.a.data(), k, operands.b.data(), row_major ? n : k, 0.0F, operands.c.data(), n);
  });
}

Result<double> measure_executor(const GemmShape& shape, int repeats, const Operands& operands) {
  std::vector<std::uint16_t> a(operands.a.size()), b(operands.b.size()), c(operands.c.size());
  kernels::narrow(shape.dtype, operands.a.data(), a.data(), a.size());
  kernels::narrow(shape.dtype, operands.b.data(), b.data(), b.size());
  LonelyGroup group;
  auto operation = kernels::make_gemm(OpKind::kGemmRs, shape, group.view());
  if (!operation.ok()) return operation.status();
  const Requirements needs = operation.value()->requirements();
  const auto workspace = group.workspace(needs.workspace_bytes);
  const auto lent = group.workspace(kernels::lent_workspace_bytes(needs.lent_bytes));
  if (Status bound = operation.value()->bind(group.view(), workspace, lent, 0); !bound.ok()) return bound;
  ExecutorOptions options;
  options.compute_threads = 1;
  Status status;
  const double speed = gflops(shape, repeats, [&] {
    if (status.ok()) status = operation.value()->run({a.data(), b.data(), c.data()}, options);
  });
  if (!status.ok()) return status;
  return speed;
}

}  // namespace

Result<std::vector<GemmFloorRow>> measure_gemm_floor(const std::vector<GemmShape>& shapes, int repeats) {
  std::vector<GemmFloorRow> rows;
  for (const GemmShape& shape : shapes) {
    Operands operands(shape);
    GemmFloorRow row{shape};
    row.blas_gflops = measure_blas(shape, repeats, operands);
    const Result<double> executor = measure_executor(shape, repeats, operands);
    if (!executor.ok()) return executor.status();
    row.executor_gflops = executor.value();
    row.ratio = row.executor_gflops / row.blas_gflops;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace mkernel::bench
