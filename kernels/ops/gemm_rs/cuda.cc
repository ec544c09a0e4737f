// GEMM+RS on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/sm90_maps.h"
#include "kernels/gemm/with_tile.h"
#include "kernels/memory/hopper.h"
#include "kernels/ops/cuda_operations.h"
#include "kernels/ops/gemm_rs/cuda_parameters.h"
#include "kernels/schedule/tiles.h"

namespace mkernel::kernels {
namespace {

class CudaGemmRs final : public CudaGemmOperation {
 public:
  CudaGemmRs(const GemmRsCudaPlan& plan, const GemmShape& shape, Topology topology, std::uint32_t rank)
      : CudaGemmOperation(OpKind::kGemmRs, shape, std::move(topology), rank), plan_(plan) {}

  Requirements requirements() const override {
    return {.workspace_bytes = plan_.reduce.workspace_bytes(), .gpu = true};
  }

 private:
  std::byte* workspace_of(std::int32_t rank) const { return workspace().node[topology().local_of(rank)]; }

  /// Maps of this rank's slot at every owner; they stay as long as the workspace does.
  Status attach() override {
    const std::int32_t world = plan_.steps.world, me = plan_.steps.rank;
    std::vector<TensorMap> maps(2 * world);
    for (std::int32_t i = 0; i < 2 * world; ++i) {
      const std::int32_t owner = i % world;
      const std::byte* slot = workspace_of(owner) + plan_.reduce.slot_offset(i / world, me);
      // A map has at least one row; the kernel keeps clear of that of an owner without rows.
      const std::int64_t rows = std::max<std::int64_t>(1, plan_.reduce.rows_of(owner));
      auto map =
          encode_tensor_map(sm90_c_view(matrix_element(shape().dtype), slot, rows, shape().n), "workspace");
      if (!map.ok()) return map.status();
      maps[i] = *map;
    }
    const std::uint64_t bytes = maps.size() * sizeof(TensorMap);
    auto slots = DeviceBuffer::zeroed(bytes, "gemm_rs: tensor maps");
    if (!slots.ok()) return slots.status();
    auto claimed = DeviceBuffer::zeroed(sizeof(std::uint64_t), "gemm_rs: claims");
    if (!claimed.ok()) return claimed.status();
    slots_ = std::move(slots).value();
    claimed_ = std::move(claimed).value();
    return slots_.write(maps.data(), bytes);
  }

  Status encode_operands(const GemmArguments& arguments, GemmRsParameters& p) const {
    auto a =
        encode_tensor_map(sm90_a_view(plan_.tile, shape().dtype, arguments.a, shape().m, shape().k), "a");
    if (!a.ok()) return a.status();
    p.a = *a;
    auto b = encode_tensor_map(
        sm90_b_view(plan_.tile, shape().dtype, shape().b_layout, arguments.b, shape().n, shape().k), "b");
    if (!b.ok()) return b.status();
    p.b = *b;
    p.c = static_cast<std::byte*>(arguments.c);
    if (const auto beyond = reinterpret_cast<std::uintptr_t>(arguments.c) % 16; beyond != 0) {
      return {StatusCode::kInvalidArgument,
              "gemm_rs: matrix c: address modulo 16 is " + std::to_string(beyond) + ", must be 0"};
    }
    return {};
  }

  void describe_workspace(GemmRsParameters& p) const {
    const PushReducePlan& reduce = plan_.reduce;
    const std::int32_t world = plan_.steps.world, me = plan_.steps.rank;
    const auto words = [&](std::int32_t owner, std::int32_t source) {
      return reinterpret_cast<std::uint64_t*>(workspace_of(owner) + reduce.ready_offset(source));
    };
    for (std::int32_t owner = 0; owner < world; ++owner) {
      p.ready_there[owner] = words(owner, me);
      p.first_row[owner] = static_cast<std::int32_t>(reduce.first_row(owner));
      p.rows_of[owner] = static_cast<std::int32_t>(reduce.rows_of(owner));
    }
    p.ready = words(me, 0);
    p.ready_words = reduce.ready_offset(1) / sizeof(std::uint64_t);
    for (std::uint64_t epoch : {0, 1}) p.slots_here[epoch] = workspace().mine + reduce.slot_offset(epoch, 0);
    p.slot_bytes = reduce.slot_bytes();
    p.own_rows = p.rows_of[me];
    p.columns = static_cast<std::int32_t>(reduce.columns);
  }

  Status launch(const GemmArguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) override {
    GemmRsParameters p{};
    MK_RETURN_IF_ERROR(encode_operands(arguments, p));
    describe_workspace(p);
    p.slots = static_cast<const TensorMap*>(slots_.get());
    p.claimed = static_cast<std::uint64_t*>(claimed_.get());
    p.control = control();
    p.host = host_watch();
    p.deadline_ns = deadline_ns;
    p.steps = plan_.steps;
    p.raster = plan_.raster;
    p.units = plan_.units;
    p.k_blocks = static_cast<std::int32_t>(ceil_div(shape().k, kSm90TileK));
    p.reduce_ctas = plan_.reduce_ctas;
    const std::int32_t ctas = plan_.reduce_ctas + plan_.compute_ctas;
    return with_tile(plan_.tile, "gemm_rs",
                     [&]<Sm90Tile kTile>() { return launch_gemm_rs<kTile>(shape(), p, ctas, stream); });
  }

  const GemmRsCudaPlan plan_;
  DeviceBuffer slots_;    ///< TensorMap [epoch parity][owner]
  DeviceBuffer claimed_;  ///< GemmRsParameters::claimed
};

}  // namespace

Result<std::unique_ptr<CudaGemmOperation>> make_cuda_gemm_rs(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const GemmRsCudaOptions& options) {
  auto sms = hopper_multiprocessors("gemm_rs");
  if (!sms.ok()) return sms.status();
  auto plan = GemmRsCudaPlan::make(shape, topology, rank, *sms, options);
  if (!plan.ok()) return plan.status();
  return std::unique_ptr<CudaGemmOperation>(
      std::make_unique<CudaGemmRs>(*plan, shape, std::move(topology), rank));
}

}  // namespace mkernel::kernels
