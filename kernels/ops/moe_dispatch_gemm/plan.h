// Plan of the mixture-of-experts layer: who owns which expert, how rows and metadata are packed, where they
// lie and how many puts they are. Pure and the same on every rank. What depends on the routing of a launch is
// built by the pure functions of routing.h. Host memory only (README.md): there a NIC's writes are coherent
// with every core, so whoever acquires the word of a neighbour sees what that rank saw when it acquired the
// arrival count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Begins the metadata of one source and node. Followed by expert numbers [rows, topk] (int32) and weights
/// [rows, topk] (fp32). A put without payload in its place says "no rows", and leaves an older `launch`
/// behind.
struct MoeHeader {
  std::uint64_t launch;     ///< 1, 2, 3, ...
  std::uint64_t rows;       ///< of this launch
  std::uint64_t first_row;  ///< rows of all launches before
  std::uint64_t reserved[5];
};
static_assert(sizeof(MoeHeader) == 64);

/// Byte offsets within the symmetric workspace of one rank (n, g). `node` is a source's node m: what lies
/// here came from rank (m, g). `peer` numbers the other nodes, see MoePlan::peer().
struct MoeWorkspace {
  std::uint64_t nodes = 0, ranks_per_node = 0;
  std::uint64_t meta_bytes = 0, rows_bytes = 0, sums_bytes = 0, partials_bytes = 0;  ///< of one area each

  /// Launches whose metadata from `node` is in place.
  std::uint64_t meta_ready(std::uint64_t node) const { return word(node); }
  /// Rows from `node` in place, over all launches.
  std::uint64_t rows_ready(std::uint64_t node) const { return word(nodes + node); }
  /// Launches for which this rank's experts are done with source (node, local).
  std::uint64_t partials_ready(std::uint64_t node, std::uint64_t local) const {
    return word(2 * nodes + node * ranks_per_node + local);
  }
  std::uint64_t meta_in(std::uint64_t node) const { return words_end() + node * meta_bytes; }
  std::uint64_t rows_in(std::uint64_t node) const { return meta_in(nodes) + node * rows_bytes; }
  /// This rank's weighted sums (fp32) for the rows of source (node, local).
  std::uint64_t partials(std::uint64_t node, std::uint64_t local) const {
    return rows_in(nodes) + (node * ranks_per_node + local) * partials_bytes;
  }
  std::uint64_t meta_out(std::uint64_t peer) const { return partials(nodes, 0) + peer * meta_bytes; }
  std::uint64_t rows_out(std::uint64_t peer) const { return meta_out(nodes - 1) + peer * rows_bytes; }
  std::uint64_t sums_out(std::uint64_t peer) const { return rows_out(nodes - 1) + peer * sums_bytes; }
  std::uint64_t sums_in(std::uint64_t peer) const { return sums_out(nodes - 1) + peer * sums_bytes; }
  std::uint64_t bytes() const { return sums_in(nodes - 1); }

 private:
  static std::uint64_t word(std::uint64_t index) { return index * sizeof(SignalWord); }
  std::uint64_t words_end() const { return word(nodes * (2 + ranks_per_node)); }
};

class MoePlan {
 public:
  static constexpr std::uint32_t kDispatchLane = 0;  ///< metadata, then rows
  static constexpr std::uint32_t kReturnLane = 1;    ///< sums of a node, back to the source
  static constexpr std::uint32_t kLanes = 2;
  static constexpr std::int64_t kBlockRows = 128;  ///< of one product

  /// Refuses impossible shapes naming field, value and limit.
  static Result<MoePlan> make(const MoeShape& shape, const Topology& topology);

  const MoeShape& shape() const { return shape_; }
  const Topology& topology() const { return topology_; }
  const MoeWorkspace& workspace() const { return workspace_; }
  std::string signature() const;
  Requirements requirements() const;

  Range experts(std::uint32_t rank) const { return block_range(shape_.experts, topology_.world(), rank); }
  std::uint32_t owner(std::int64_t expert) const { return owner_[static_cast<std::size_t>(expert)]; }
  std::uint32_t owner_node(std::int64_t expert) const { return topology_.node_of(owner(expert)); }
  /// Columns of w1: the gate and the value side by side when there is a second product.
  std::int64_t w1_columns() const { return shape_.intermediate > 0 ? 2 * shape_.intermediate : shape_.n; }

  /// Number of `other` among the nodes that are not `own`: which area of `own` belongs to it.
  static std::uint32_t peer(std::uint32_t own, std::uint32_t other) {
    return other < own ? other : other - 1;
  }

  // Bytes and puts of `rows` rows.
  std::uint64_t row_bytes() const { return static_cast<std::uint64_t>(shape_.hidden) * 2; }
  std::uint64_t sum_bytes() const { return static_cast<std::uint64_t>(shape_.n) * 2; }
  std::uint64_t meta_bytes(std::int64_t rows) const {
    return sizeof(MoeHeader) + static_cast<std::uint64_t>(rows * shape_.topk) * 8;
  }
  std::int64_t rows_per_put() const { return rows_per_put_; }
  std::int64_t sums_per_put() const { return sums_per_put_; }
  /// On the dispatch lane: the metadata (or the word that there is none), then the rows.
  std::uint64_t dispatch_puts(std::int64_t rows) const {
    return 1 + static_cast<std::uint64_t>(ceil_div(rows, rows_per_put_));
  }
  /// On the return lane: the sums, or the word that there are none.
  std::uint64_t return_puts(std::int64_t rows) const {
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(ceil_div(rows, sums_per_put_)));
  }

 private:
  MoePlan(const MoeShape& shape, const Topology& topology);

  MoeShape shape_;
  Topology topology_;
  MoeWorkspace workspace_;
  std::vector<std::uint32_t> owner_;  ///< by expert
  std::int64_t rows_per_put_ = 1;
  std::int64_t sums_per_put_ = 1;
};

}  // namespace mkernel::kernels
