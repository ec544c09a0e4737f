// AG+GEMM on the cuda executor: the host's side of a launch.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/launch/gemm_operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/hopper.h"
#include "kernels/ops/ag_gemm/gathered.h"
#include "kernels/ops/ag_gemm/parameters.h"
#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/ops/make.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

class CudaAgGemm final : public CudaGemmOperation {
 public:
  CudaAgGemm(const AgGemmPlan& plan, const GemmShape& shape, Topology topology, std::uint32_t rank)
      : CudaGemmOperation(OpKind::kAgGemm, shape, std::move(topology), rank), plan_(plan) {}

  Requirements requirements() const override {
    return {.workspace_bytes = plan_.gather.word_bytes(),
            .lent_bytes = plan_.gather.data_bytes(),
            .lanes = plan_.lanes(),
            .gpu = true,
            .remote_adds = true};
  }
  std::uint64_t wire_bytes() const override { return plan_.wire_bytes(); }
  double expected_seconds() const override { return estimated_seconds(shape(), plan_); }

 private:
  /// Maps of a for every part of every slab; they stay as long as the workspaces do.
  Status attach() override {
    const PushGatherPlan& gather = plan_.gather;
    std::vector<TensorMap> maps;
    for (const std::uint64_t launch : {0, 1}) {
      const std::byte* half = lent().mine + lent_half_at(launch, half_bytes());
      for (std::int32_t slab = 0; slab < gather.slabs(); ++slab) {
        // A map has at least one row; the kernel keeps clear of that of a slab without rows.
        const std::int64_t rows = std::max<std::int64_t>(1, gather.slab_rows(slab));
        for (std::int32_t part = 0; part < gather.row.parts; ++part) {
          auto map = encode_tensor_map(
              sm90_a_view(plan_.a_box_rows(), shape().dtype, half + gather.part_offset(slab, part), rows,
                          gather.row.bytes(part) / 2),
              "workspace");
          if (!map.ok()) return map.status();
          maps.push_back(*map);
        }
      }
    }
    auto slabs = DeviceBuffer::holding(maps, "ag_gemm: tensor maps");
    if (!slabs.ok()) return slabs.status();
    slabs_ = std::move(slabs).value();
    return pace_links(plan_.machine);
  }

  Status encode_operands(const GemmArguments& arguments, AgGemmParameters& p) const {
    if (const std::int64_t own_rows = plan_.gather.rows_of(plan_.steps.rank); own_rows > 0) {
      auto a = encode_tensor_map(
          sm90_a_view(plan_.a_box_rows(), shape().dtype, arguments.a, own_rows, shape().k), "a");
      if (!a.ok()) return a.status();
      p.a = *a;
    }
    for (int product = 0; product < products_of(shape()); ++product)
      MK_RETURN_IF_ERROR(encode_product(arguments, product, p));
    return {};
  }

  Status encode_product(const GemmArguments& arguments, int product, AgGemmParameters& p) const {
    const std::int64_t n = columns_of(shape(), product);
    auto b = encode_tensor_map(
        sm90_b_view(shape().dtype, shape().b_layout, b_of(arguments, product), n, shape().k),
        kNamesOfB[product]);
    if (!b.ok()) return b.status();
    p.b[product] = *b;
    const PushGatherPlan& gather = plan_.gather;
    const bool one_size = gather.shared || gather.max_rows() == gather.min_rows();
    for (const int more : {0, 1}) {
      if (more == 1 && one_size) {  // a launch pays for every map on the host
        p.c[product][1] = p.c[product][0];
        continue;
      }
      auto c = encode_tensor_map(
          sm90_c_view(shape().dtype, c_of(arguments, product), gather.map_rows(more), n, shape().m),
          kNamesOfC[product]);
      if (!c.ok()) return c.status();
      p.c[product][more] = *c;
    }
    return {};
  }

  Status launch(const GemmArguments& arguments, std::uint64_t deadline_ns, CUstream_st* stream) override {
    AgGemmParameters p{};
    MK_RETURN_IF_ERROR(check_address(arguments.gathered, "gathered").with_context(name_of(kind())));
    MK_RETURN_IF_ERROR(encode_operands(arguments, p));
    p.slabs = static_cast<const TensorMap*>(slabs_.get());
    p.endpoint = endpoint(deadline_ns);
    p.links = links();
    p.rows = static_cast<const std::byte*>(arguments.a);
    p.region = lent().region;
    p.half_bytes = half_bytes();
    p.local_rank = static_cast<std::int32_t>(topology().local_of(rank()));
    std::copy(workspace().node.begin(), workspace().node.end(), p.words);
    std::copy(lent().node.begin(), lent().node.end(), p.lent);
    for (std::uint32_t step = 1; step < topology().nodes(); ++step) {
      const std::uint32_t node = (topology().node_of(rank()) + step) % topology().nodes();
      p.rail[p.rails++] = static_cast<std::int32_t>(topology().rail_peer(rank(), node));
    }
    p.gather = plan_.gather;
    p.steps = plan_.steps;
    p.assignment = plan_.assignment;
    p.columns = plan_.columns;
    p.read_in_place = plan_.gather.shared ? -1 : plan_.steps.rank;
    p.k_blocks = static_cast<std::int32_t>(ceil_div(shape().k, kSm90TileK));
    p.comm_ctas = plan_.comm_ctas;
    p.a_box_rows = plan_.a_box_rows();
    const std::int32_t ctas = plan_.comm_ctas + plan_.compute_ctas;
    MK_RETURN_IF_ERROR(queue(&p, ctas, stream));
    if (arguments.gathered == nullptr) return {};
    return copy_gathered({.out = static_cast<std::byte*>(arguments.gathered),
                          .own = p.rows,
                          .lent = lent().mine,
                          .half_bytes = half_bytes(),
                          .rank = plan_.steps.rank,
                          .gather = plan_.gather},
                         ctas, stream);
  }

  const AgGemmPlan plan_;
  DeviceBuffer slabs_;  ///< TensorMap [half][slab][part]
};

}  // namespace

Result<std::unique_ptr<CudaGemmOperation>> make_cuda_ag_gemm(const GemmShape& shape, Topology topology,
                                                             std::uint32_t rank,
                                                             const AgGemmOptions& options) {
  auto machine = hopper_machine("ag_gemm", options.machine, options.sms);
  if (!machine.ok()) return machine.status();
  auto plan = AgGemmPlan::make(shape, topology, rank, *machine, options);
  if (!plan.ok()) return plan.status();
  CooperativeKernel kernel;
  MK_RETURN_IF_ERROR(with_tile(plan->tile, "ag_gemm", [&]<Sm90Tile kTile>() -> Status {
    if constexpr (kTile == Sm90Tile::k128x256) {
      if (plan->cluster == Sm90Cluster::kSideBySide) {
        kernel = ag_gemm_kernel_of<kTile, Sm90Cluster::kSideBySide>(shape);
        return {};
      }
    }
    kernel = ag_gemm_kernel_of<kTile, Sm90Cluster::kStacked>(shape);
    return {};
  }));
  std::unique_ptr<CudaGemmOperation> made =
      std::make_unique<CudaAgGemm>(*plan, shape, std::move(topology), rank);
  MK_RETURN_IF_ERROR(made->load(kernel, *machine));
  MK_RETURN_IF_ERROR(load_copy_gathered());
  return made;
}

}  // namespace mkernel::kernels
