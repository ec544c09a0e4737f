#include "kernels/cuda/reduce/tile_reduce_operation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/memory/own_stream.h"
#include "kernels/cuda/reduce/slot_views.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

TileReduceOperation::TileReduceOperation(OpKind kind, const TileReducePlan& plan, const GemmShape& shape,
                                         Topology topology, std::uint32_t rank)
    : CudaGemmOperation(kind, shape, std::move(topology), rank), plan_(plan) {}

Status TileReduceOperation::attach() {
  MK_RETURN_IF_ERROR(pace_links(plan_.machine));
  const std::int32_t turns = plan_.tiles.turns();
  std::vector<OwnerOnDevice> owners(turns);
  for (std::int32_t turn = 0; turn < turns; ++turn) {
    const std::int32_t owner = plan_.owners[turn];
    std::byte* ready =
        workspace().node[reducer_of(turn)] + plan_.reduce.ready_offset(node_turn(turn), local());
    owners[turn] = {.ready_there = reinterpret_cast<std::uint64_t*>(ready),
                    .rank = owner,
                    .first_row = static_cast<std::int32_t>(plan_.reduce.first_row(owner)),
                    .rows = static_cast<std::int32_t>(plan_.reduce.rows_of(owner))};
  }
  std::copy_n(owners.begin(), std::min(owners.size(), first_owners_.size()), first_owners_.begin());
  std::vector<TensorMap> maps;
  for (const MatrixView& view : slot_views(plan_, shape(), [&](std::uint64_t half, std::int32_t turn) {
         return slot(reducer_of(turn), half, node_turn(turn), local());
       })) {
    auto map = encode_tensor_map(view, "workspace");
    if (!map.ok()) return map.status();
    maps.push_back(*map);
  }
  if (plan_.reduce.marked)
    MK_RETURN_IF_ERROR(mark(plan_.reduce.marked_offset(0, 0), plan_.reduce.marked_end()));
  const auto keep = [](Result<DeviceBuffer> made, DeviceBuffer& buffer) -> Status {
    if (!made.ok()) return made.status();
    buffer = std::move(made).value();
    return {};
  };
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::holding(owners, "owners of rows"), owners_));
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::holding(maps, "tensor maps of the slots"), slots_));
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::zeroed(sizeof(std::uint64_t), "claims of sums"), claimed_));
  const std::uint64_t staged = sizeof(std::uint64_t) * plan_.rail_peers().size() * plan_.most_chunks();
  if (staged == 0) return {};
  return keep(DeviceBuffer::zeroed(staged, "counts of staged units"), staged_);
}

std::byte* TileReduceOperation::slot(std::uint32_t reducer, std::uint64_t half, std::int32_t node_turn,
                                     std::int32_t source) const {
  if (plan_.reduce.marked) return workspace().node[reducer] + plan_.reduce.marked_offset(half, source);
  return lent().node[reducer] + lent_half_at(half, half_bytes()) +
         plan_.reduce.slot_offset(node_turn, source);
}

Status TileReduceOperation::mark(std::uint64_t begin, std::uint64_t end) const {
  static_assert(PushReducePlan::kMark == 0xFFFF);
  const auto stream = OwnStream::make("marks");
  if (!stream.ok()) return stream.status();
  return stream.value().fill(workspace().mine + begin, 0xFF, end - begin, "marks");
}

Status TileReduceOperation::describe_operands(const GemmArguments& arguments, TileReduceParameters& p) const {
  auto a = encode_tensor_map(
      sm90_a_view(plan_.a_box_rows(), shape().dtype, arguments.a, shape().m, shape().k), "a");
  if (!a.ok()) return a.status();
  p.a = *a;
  auto b =
      encode_tensor_map(sm90_b_view(shape().dtype, shape().b_layout, arguments.b, shape().n, shape().k), "b");
  if (!b.ok()) return b.status();
  p.b = *b;
  MK_RETURN_IF_ERROR(check_address(arguments.c, "c").with_context(name_of(kind())));
  if (plan_.tiles.turns() > 1) return {};
  auto c = encode_tensor_map(sm90_c_view(shape().dtype, arguments.c, shape().m, shape().n), "c");
  if (c.ok()) p.direct_c = *c;
  return c.status();
}

void TileReduceOperation::describe_workspace(TileReduceParameters& p) const {
  const PushReducePlan& reduce = plan_.reduce;
  std::copy(first_owners_.begin(), first_owners_.end(), p.first_owners);
  p.owners = static_cast<const OwnerOnDevice*>(owners_.get());
  for (std::int32_t source = 0; source < reduce.sources; ++source)
    p.source_rank[source] = static_cast<std::int32_t>(topology().rank_at(topology().node_of(rank()), source));
  p.ready = reinterpret_cast<const std::uint64_t*>(workspace().mine + reduce.ready_offset(0, 0));
  p.ready_words = reduce.ready_offset(0, 1) / sizeof(std::uint64_t);
  for (const std::uint64_t half : {0, 1}) p.slots_here[half] = slot(topology().local_of(rank()), half, 0, 0);
  p.half_bytes = half_bytes();
  p.slot_bytes = reduce.slot_bytes();
  p.columns = static_cast<std::int32_t>(reduce.columns);
}

void TileReduceOperation::describe_wire(PartialsWire& wire) const {
  wire.plan = plan_.partials;
  wire.lent = lent().mine;
  wire.region = lent().region;
  wire.staged = static_cast<std::uint64_t*>(staged_.get());
  wire.chunks = plan_.most_chunks();
  const std::int32_t sources = plan_.reduce.sources;
  for (std::int32_t turn = sources - 1; turn < plan_.tiles.turns(); turn += sources)
    wire.packed_units[node_turn(turn)] = plan_.packed_units(plan_.owners[turn]);
}

Status TileReduceOperation::describe(const GemmArguments& arguments, std::uint64_t deadline_ns,
                                     TileReduceParameters& p) const {
  MK_RETURN_IF_ERROR(describe_operands(arguments, p));
  describe_workspace(p);
  describe_wire(p.wire);
  p.slots = static_cast<const TensorMap*>(slots_.get());
  p.claimed = static_cast<std::uint64_t*>(claimed_.get());
  p.endpoint = endpoint(deadline_ns);
  p.links = links();
  p.tiles = plan_.tiles;
  p.shared = plan_.shared;
  p.marked = plan_.reduce.marked;
  p.rows = static_cast<std::int32_t>(shape().m);
  p.a_box_rows = plan_.a_box_rows();
  p.units = plan_.units;
  p.k_blocks = static_cast<std::int32_t>(ceil_div(shape().k, kSm90TileK));
  p.reduce_ctas = plan_.reduce_ctas;
  return {};
}

std::uint32_t TileReduceOperation::reducer_of(std::int32_t turn) const {
  return topology().local_of(static_cast<std::uint32_t>(plan_.owners[turn]));
}

}  // namespace mkernel::kernels
