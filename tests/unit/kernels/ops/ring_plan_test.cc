// The plan of ring attention that both executors start from: who holds what, tiles of queries, chunks, and
// what is refused by name.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ring_attention/gather_cpu.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/plan/positions.h"

namespace mkernel::kernels {
namespace {

constexpr AttentionShape kRingShape{.batch = 2, .sequence = 8, .heads = 4, .kv_heads = 2, .head_dim = 16};

/// check(plan) for every rank of several worlds, lengths and both masks.
template <typename Check>
void for_all_rings(const Check& check) {
  for (const Topology& topology : {Topology(1, 1), {1, 4}, {2, 2}, {3, 2}, {4, 8}}) {
    for (const std::int64_t sequence : {1, 7, 37, 1000, 30011}) {
      for (const bool causal : {false, true}) {
        for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
          AttentionShape shape = kRingShape;
          shape.sequence = sequence;
          shape.causal = causal;
          check(RingPlan::make(shape, topology, rank));
        }
      }
    }
  }
}

std::string ring_refusal(const AttentionShape& shape, const Topology& topology = {2, 1},
                         OpKind kind = OpKind::kRingAttention) {
  return RingPlan::check(kind, shape, topology).text();
}

}  // namespace

TEST_CASE("ring plan: the ranks hold every position once, zigzag in equal shares") {
  for (const std::int64_t world : {1, 4, 7, 32}) {
    for (const std::int64_t sequence : {1, 7, 37, 1000}) {
      for (const bool causal : {false, true}) {
        std::vector<int> held(static_cast<std::size_t>(sequence));
        for (std::int64_t rank = 0; rank < world; ++rank) {
          const Positions positions = held_positions(sequence, causal, world, rank);
          for (std::int64_t row = 0; row < positions.size(); ++row)
            ++held[static_cast<std::size_t>(positions.at(row))];
          CHECK(positions.size() <= sequence / world + 2);
        }
        CHECK(std::all_of(held.begin(), held.end(), [](int times) { return times == 1; }));
      }
    }
  }
}

TEST_CASE("ring plan: tiles of queries cover the own positions once, and lie in one part each") {
  for_all_rings([](const RingPlan& plan) {
    const KvGatherPlan& gather = plan.gather;
    const std::int32_t tiles =
        plan.tasks.tasks() / static_cast<std::int32_t>(plan.shape.batch * plan.shape.heads);
    std::int64_t next = 0;
    for (std::int32_t tile = 0; tile < tiles; ++tile) {
      const Range rows = plan.query_rows(tile);
      CHECK(rows.begin == next);
      CHECK(rows.size() > 0);
      CHECK(rows.size() <= kAttentionTileQueries);
      CHECK((rows.end <= plan.part_begin(1) || rows.begin >= plan.part_begin(1)));
      next = rows.end;
    }
    CHECK(next == gather.positions(gather.rank));
  });
}

TEST_CASE("ring plan: on the cpu executor chunks are whole tiles of keys and as long as asked for") {
  for_all_rings([](RingPlan plan) {
    cut_on_cpu(plan, 16 << 10);
    const KvGatherPlan& gather = plan.gather;
    for (std::int32_t source = 0; source < gather.world; ++source) {
      std::int32_t rows = 0;
      for (std::int32_t chunk = gather.first_chunk(1); chunk < gather.first_chunk(2); ++chunk) {
        if (gather.chunk_rows(source, chunk) > 0) CHECK(gather.chunk_row(chunk) == rows);
        CHECK((gather.blocks == 1 || gather.chunk_row(chunk) % kAttentionTile == 0));
        CHECK(gather.chunk_bytes(source, chunk) <= 16 << 10);
        rows += gather.chunk_rows(source, chunk);
      }
      CHECK(rows == gather.positions(source));
    }
  });
}

TEST_CASE("ring plan: impossible shapes are refused by field, value and limit") {
  const auto with = [](const auto& change) {
    AttentionShape shape = kRingShape;
    change(shape);
    return ring_refusal(shape);
  };
  CHECK(ring_refusal(kRingShape) == "");
  CHECK(with([](auto& s) { s.sequence = 0; }).find("sequence = 0, but it must be 1..") != std::string::npos);
  CHECK(with([](auto& s) { s.kv_heads = 3; }).find("heads = 4, but it must be a multiple of kv_heads = 3") !=
        std::string::npos);
  CHECK(with([](auto& s) { s.head_dim = 5000; }).find("head_dim = 5000, but it must be 1..4096") !=
        std::string::npos);
  CHECK(with([](auto& s) { s.scale = -1; }).find("scale = -1") != std::string::npos);
  CHECK(with([](auto& s) { s.dtype = static_cast<DataType>(9); }).find("dtype = 9") != std::string::npos);
  CHECK(with([](auto& s) { s.window_left = 3; }) == "ring_attention: window_left = 3, but it must be -1");
  CHECK(with([](auto& s) { s.keys = 9; }) == "ring_attention: keys = 9, but it must be 0 or the sequence, 8");
  CHECK(with([](auto& s) {
          s.sequence = std::int64_t{1} << 24;
          s.heads = s.kv_heads = 64;
        }) == "ring_attention: batch * sequence * kv_heads = 2147483648, must be at most 1073741824");
  CHECK(ring_refusal(kRingShape, {5, 13}, OpKind::kRingAttentionBackward) ==
        "ring_attention_backward: world = 65, must be at most 64");
  AttentionShape packed = kRingShape;
  packed.batch = 1;
  packed.max_sequences = 3;
  CHECK(ring_refusal(packed) == "");
  CHECK(ring_refusal(packed, {2, 1}, OpKind::kRingAttentionBackward) ==
        "ring_attention_backward: max_sequences = 3, but it must be 0");
  packed.max_sequences = 1024;
  packed.heads = packed.kv_heads = 1 << 19;
  CHECK(ring_refusal(packed) ==
        "ring_attention: heads * max_sequences = 536870912, must be at most 268435456");
}

}  // namespace mkernel::kernels
