// What the tests of ring attention and of its backward pass on the cuda executor have in common: ranks of one
// node and of several, which a fabric of the test's joins, also such that share a GPU.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/launch/operation.h"
#include "kernels/ops/make.h"
#include "tests/support/gpu_world.h"
#include "tests/support/require.h"
#include "tools/mkbench/gpu_stream.h"

namespace mkernel::test {

inline constexpr ExecutorOptions kRingOptions{.deadline = std::chrono::seconds(10)};

/// `Rank` has a `stream`, an `operation` and `operands` with arguments(set) and digest(set, stream).
template <class Rank>
class GpuRingRanks {
 public:
  int size() const { return world_->size(); }
  FakeFabric& fabric() { return world_->fabric(); }
  Status each(const std::function<Status(int rank)>& body) const { return world_->each(body); }
  auto& operation(int rank) { return *at(rank).operation; }
  const bench::GpuStream& stream(int rank) { return at(rank).stream; }

  Status enqueue(int rank, const ExecutorOptions& options = kRingOptions) {
    return world_->calls().run("launch of rank " + std::to_string(rank), [&] {
      return operation(rank).enqueue(at(rank).operands->arguments(0), options, stream(rank).get());
    });
  }
  /// Until what was queued on the rank's stream is done.
  Status wait(int rank) {
    return world_->calls().run("wait for rank " + std::to_string(rank),
                               [&] { return stream(rank).synchronize(); });
  }
  /// Until all launches are over, and good.
  void synchronize() {
    require_ok(each([&](int rank) -> Status {
      MK_RETURN_IF_ERROR(wait(rank));
      return operation(rank).status();
    }));
  }
  /// A graph of a launch for each rank. From the thread of the test case, as replay().
  std::vector<bench::GpuGraph> capture() {
    std::vector<bench::GpuGraph> graphs(ranks_.size());
    require_ok(each([&](int rank) -> Status {
      auto graph = bench::GpuGraph::capture(stream(rank), [&] { return enqueue(rank); });
      if (graph.ok()) graphs[static_cast<std::size_t>(rank)] = std::move(*graph);
      return graph.status();
    }));
    return graphs;
  }
  void replay(const std::vector<bench::GpuGraph>& graphs, int times) {
    require_ok(each([&](int rank) -> Status {
      for (int i = 0; i < times; ++i)
        MK_RETURN_IF_ERROR(graphs[static_cast<std::size_t>(rank)].launch(stream(rank)));
      return {};
    }));
  }
  /// Of the outputs of every rank, once their streams are done.
  std::vector<std::uint64_t> digests() {
    synchronize();
    std::vector<std::uint64_t> by_rank(ranks_.size());
    require_ok(each([&](int rank) -> Status {
      auto digest = at(rank).operands->digest(0, stream(rank).get());
      if (digest.ok()) by_rank[static_cast<std::size_t>(rank)] = *digest;
      return digest.status();
    }));
    return by_rank;
  }
  /// Bytes that each rank has put in `launches` launches are those that its plan says.
  void check_wire_bytes(std::uint64_t launches) {
    for (int rank = 0; rank < size(); ++rank) {
      CHECK(fabric().wire_bytes(static_cast<std::uint32_t>(rank)) == launches * operation(rank).wire_bytes());
    }
  }
  /// Rank 1 does not launch: what rank 0 says, which then refuses another launch.
  Status miss_rank_1() {
    Status missed;
    require_ok(each([&](int rank) -> Status {
      if (rank == 1) return {};
      MK_RETURN_IF_ERROR(enqueue(rank, {.deadline = std::chrono::milliseconds(400)}));
      MK_RETURN_IF_ERROR(stream(rank).synchronize());
      if (rank == 0) missed = operation(rank).status();
      return {};
    }));
    CHECK(enqueue(0).code() == StatusCode::kFailedPrecondition);
    return missed;
  }

 protected:
  explicit GpuRingRanks(const FabricOptions& fabric)
      : world_(require(GpuWorld::make(fabric))), ranks_(static_cast<std::size_t>(world_->size())) {}

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const GpuWorld& world() const { return *world_; }

  /// The stream and the operation of a rank. `make(topology, rank, options)`: the operation.
  template <class Make>
  Status make_rank(int rank, kernels::RingAttentionOptions& options, const Make& make) {
    if (options.sms == 0) options.sms = world_->sms();
    auto stream = bench::GpuStream::create();
    if (!stream.ok()) return stream.status();
    at(rank).stream = std::move(*stream);
    auto made = make(world_->topology(), static_cast<std::uint32_t>(rank), options);
    if (!made.ok()) return made.status();
    at(rank).operation = std::move(*made);
    at(rank).operation->use_rings(world_->rings(rank));
    return {};
  }
  /// When all ranks are made. `also(rank)`: what else is bound.
  void bind(const std::function<Status(int rank)>& also = [](int) { return Status(); }) {
    const Requirements needs = operation(0).requirements();
    const auto workspace = require(world_->symmetric(needs.workspace_bytes, Contents::kWords));
    const auto lent = require(world_->symmetric(kernels::lent_workspace_bytes(needs.lent_bytes)));
    require_ok(each([&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      MK_RETURN_IF_ERROR(also(rank));
      return operation(rank).bind(world_->group(rank), workspace[r], lent[r], 1);
    }));
  }
  /// From the thread of the test case: graphs of a launch of each rank, replayed `rounds` x `times` times,
  /// give the same bits in every round as a launch by itself. The first replay is verified by `verify()`.
  void check_graphs(int rounds, int times, const std::function<void()>& verify) {
    const std::vector<bench::GpuGraph> graphs = capture();
    replay(graphs, 1);
    verify();
    const std::vector<std::uint64_t> first = digests();
    for (int round = 0; round < rounds; ++round) {
      replay(graphs, times);
      CHECK(digests() == first);
    }
    require_ok(each([&](int rank) { return enqueue(rank); }));
    CHECK(digests() == first);
  }

 private:
  std::unique_ptr<GpuWorld> world_;
  std::vector<Rank> ranks_;
};

}  // namespace mkernel::test
