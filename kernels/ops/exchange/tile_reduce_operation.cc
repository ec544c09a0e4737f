#include "kernels/ops/exchange/tile_reduce_operation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/sm90_maps.h"
#include "kernels/ops/gemm_shape.h"
#include "kernels/schedule/tiles.h"

namespace mkernel::kernels {

TileReduceOperation::TileReduceOperation(OpKind kind, const TileReducePlan& plan, const GemmShape& shape,
                                         Topology topology, std::uint32_t rank)
    : CudaGemmOperation(kind, shape, std::move(topology), rank), plan_(plan) {}

Status TileReduceOperation::attach() {
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
  auto slots = DeviceBuffer::holding(maps, "tensor maps of the slots");
  if (!slots.ok()) return slots.status();
  auto claimed = DeviceBuffer::zeroed(sizeof(std::uint64_t), "claims of sums");
  if (!claimed.ok()) return claimed.status();
  slots_ = std::move(slots).value();
  claimed_ = std::move(claimed).value();
  return {};
}

Status TileReduceOperation::describe_operands(const GemmArguments& arguments, TileReduceParameters& p) const {
  auto a = encode_tensor_map(sm90_a_view(plan_.tile, shape().dtype, arguments.a, shape().m, shape().k), "a");
  if (!a.ok()) return a.status();
  p.a = *a;
  auto b =
      encode_tensor_map(sm90_b_view(shape().dtype, shape().b_layout, arguments.b, shape().n, shape().k), "b");
  if (!b.ok()) return b.status();
  p.b = *b;
  if (const auto beyond = reinterpret_cast<std::uintptr_t>(arguments.c) % 16; beyond != 0) {
    return {StatusCode::kInvalidArgument, std::string(name_of(kind())) + ": matrix c: address modulo 16 is " +
                                              std::to_string(beyond) + ", must be 0"};
  }
  return {};
}

void TileReduceOperation::describe_workspace(TileReduceParameters& p) const {
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

Status TileReduceOperation::describe(const GemmArguments& arguments, std::uint64_t deadline_ns,
                                     TileReduceParameters& p) const {
  MK_RETURN_IF_ERROR(describe_operands(arguments, p));
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
  p.trace = trace();
  return {};
}

}  // namespace mkernel::kernels
