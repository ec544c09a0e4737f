// What the tests of attention of sequences of different lengths and of its backward pass on the cuda executor
// have in common: a rank alone.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tests/support/varlen_reference.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {

inline constexpr ExecutorOptions kVarlenOptions{.deadline = std::chrono::seconds(10)};

/// An operation of a rank alone, bound, with operands on the GPU. `Pass`, which is made of the shape, has
///   using Operation, Operands;                          // the operation, and its case of mkbench
///   static make(shape, options);                        // makes the operation
///   Status bind(group);                                 // what fill() needs beside it
///   Status fill(operands, stream);                      // completes the inputs
///   static written_from(operands, query, key, stream);  // GpuVarlenRank::written_from()
template <class Pass>
class GpuVarlenRank {
 public:
  explicit GpuVarlenRank(const AttentionShape& shape, const kernels::AttentionOptions& options = {})
      : world_(require(GpuWorld::make(1))),
        pass_(shape),
        operation_(require(Pass::make(shape, options))),
        stream_(require(bench::GpuStream::create())),
        operands_(require(Pass::Operands::make(shape))) {
    require_ok(pass_.bind(world_->group(0)));
    require_ok(operation_->bind(world_->group(0), {}, {}, 1));
  }

  typename Pass::Operation& operation() { return *operation_; }
  typename Pass::Operands& operands() { return operands_; }
  const bench::GpuStream& stream() const { return stream_; }

  /// Queues new inputs, these lengths, and poison into what the operation writes.
  void fill(const SequenceLengths& lengths, std::uint64_t seed) {
    require_ok(operands_.fill(seed, stream_.get(), 2));
    set_lengths(lengths);
    require_ok(pass_.fill(operands_, stream_.get()));
  }
  void set_lengths(const SequenceLengths& lengths) {
    require_ok(operands_.set_lengths(lengths.q, lengths.k, stream_.get()));
  }
  Status enqueue() { return operation_->enqueue(operands_.arguments(), kVarlenOptions, stream_.get()); }
  /// By itself, on a stream of the operation's.
  Status run() {
    require_ok(stream_.synchronize());
    return operation_->run(operands_.arguments(), kVarlenOptions);
  }
  /// What a launch with these lengths has left, every `step`-th row of it.
  void verify(const SequenceLengths& lengths, std::int64_t step = 1) {
    const auto check = require(operands_.check(lengths.q, lengths.k, step, stream_.get()));
    CHECK_MESSAGE(check.wrong == 0, check.wrong << " of " << check.elements << " elements, one at "
                                                << check.first_wrong << ", worst of bound " << check.worst);
    CHECK(written_from(lengths.q.back(), lengths.k.back()) == 0);
  }
  void run_checked(const SequenceLengths& lengths, std::uint64_t seed, std::int64_t step = 1) {
    fill(lengths, seed);
    require_ok(run());
    CHECK_FALSE(operation_->refused());
    verify(lengths, step);
  }
  /// Elements of what the operation writes, of queries from row `query` on and of keys from row `key` on,
  /// that are no poison any more.
  std::uint64_t written_from(std::int64_t query, std::int64_t key) const {
    return require(Pass::written_from(operands_, query, key, stream_.get()));
  }
  /// Of what the operation writes. Waits for the stream.
  std::uint64_t digest() const { return require(operands_.digest(stream_.get())); }

 private:
  std::unique_ptr<GpuWorld> world_;
  Pass pass_;
  std::unique_ptr<typename Pass::Operation> operation_;
  bench::GpuStream stream_;
  typename Pass::Operands operands_;
};

/// A rank for every size of heads, mask and type.
template <class Pass, class Check>
void for_all_varlen(const AttentionShape& of, const Check& check) {
  for_every_attention(of, [&](const AttentionShape& shape) {
    GpuVarlenRank<Pass> rank(shape);
    CAPTURE(rank.operation().signature());
    check(rank);
  });
}

/// Of ragged_lengths(11), and rows behind the last sequence.
inline constexpr AttentionShape kRaggedVarlen{.batch = 1,
                                              .sequence = 760,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .head_dim = 64,
                                              .keys = 1030,
                                              .max_sequences = 11};

/// Fewer rows and heads, and rows behind the last sequence, for tools that watch every access: sequences of
/// one tile and of several, of queries and of keys alone.
inline constexpr AttentionShape kFewVarlen{
    .batch = 1, .sequence = 220, .heads = 2, .kv_heads = 1, .head_dim = 64, .keys = 510, .max_sequences = 11};
/// So few that each has several tasks: of the backward pass, whose tasks racecheck follows.
inline constexpr kernels::AttentionOptions kFewVarlenCtas{.sms = 4};
inline SequenceLengths few_lengths() {
  return sequence_lengths({5, 0, 130, 1, 77}, {9, 40, 130, 320, 0}, kFewVarlen.max_sequences);
}

}  // namespace mkernel::test
