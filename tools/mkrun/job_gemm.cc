#include <optional>

#include "tools/mkrun/job.h"

namespace mkernel::mkrun {
namespace {

class GemmJob : public Job {
 public:
  Status load(const Options& options) override {
    const std::string rows = options.op == "ag_gemm" ? "rows of this rank" : "m";
    const std::int64_t m = options.op != "ag_gemm" && options.m > 0 ? options.m : -1;
    auto a = load_values("--a", options.a, {{rows, m}, {"k"}}, options.dtype);
    if (!a.ok()) return a.status();
    const std::int64_t k = a->shape[1];
    const bool row_major = options.b_layout == Layout::kRowMajor;
    const std::vector<Extent> wanted =
        row_major ? std::vector<Extent>{{"k", k}, {"n"}} : std::vector<Extent>{{"n"}, {"k", k}};
    auto b = load_values("--b", options.b, wanted, options.dtype);
    if (!b.ok()) return b.status();
    shape_ = {a->shape[0], b->shape[row_major ? 1 : 0], k, options.dtype, options.b_layout};
    a_ = std::move(*a);
    b_ = std::move(*b);
    return {};
  }

  Status plan(Group& group, const Options& options) override {
    const auto world = static_cast<std::int64_t>(group.world_size());
    const auto rows_of = [&](std::int64_t rank, std::int64_t m) {
      return block_range(m, world, rank).size();
    };
    if (options.op == "ag_gemm") {
      const auto parts = gather(group, shape_.m);
      if (!parts.ok()) return parts.status();
      const auto m = total_of(parts.value(), "m", options.m, rows_of);
      if (!m.ok()) return m.status().with_context("rows of --a");
      shape_.m = m.value();
    }
    auto made = options.op == "ag_gemm"   ? group.ag_gemm(shape_, options.executor)
                : options.op == "gemm_rs" ? group.gemm_rs(shape_, options.executor)
                                          : group.gemm_ar(shape_, options.executor);
    if (!made.ok()) return made.status();
    operation_.emplace(std::move(*made));
    make_out({options.op == "gemm_rs" ? rows_of(group.rank(), shape_.m) : shape_.m, shape_.n});
    MK_RETURN_IF_ERROR(place(options, a_.values, arguments_.a));
    MK_RETURN_IF_ERROR(place(options, b_.values, arguments_.b));
    return place_result(options, out_, arguments_.c);
  }

  Result<Pending> launch(const ExecutorOptions& options) override {
    return operation_->launch(arguments_, options);
  }
  const Planned& operation() const override { return *operation_; }

 private:
  GemmShape shape_;
  Operand a_, b_;
  GemmArguments arguments_;
  std::optional<Gemm> operation_;
};

}  // namespace

std::unique_ptr<Job> make_gemm_job() {
  return std::make_unique<GemmJob>();
}

}  // namespace mkernel::mkrun
