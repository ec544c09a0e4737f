// Sessions and daemons of a whole cluster in one process, for executor tests: N nodes x G ranks get their
// session and group segments, one thread drains every ring, copies the puts and publishes the counts.
//
//   FakeFabric fabric({.nodes = 2, .ranks_per_node = 2, .seed = 7});
//   auto workspace = fabric.symmetric(bytes);            // by rank, zeroed
//   operation[r]->bind(fabric.group(r), workspace[r], lent[r], 0);  // all ranks, before any runs
//   auto statuses = run_ranks(fabric.world(), [&](std::uint32_t rank) { return operation[rank]->run(...); });
//   CHECK(fabric.error() == "");
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/views.h"
#include "proto/abi/status.h"

namespace mkernel::test {

/// What a symmetric buffer is for.
enum class Contents { kData, kWords };  ///< words: no put reads or writes them, only ranks of a node do

/// Where a fabric's memory lies, and how it moves.
class FabricMemory {
 public:
  virtual ~FabricMemory() = default;
  /// Zeroed, aligned to 64 bytes, reached by the CPU; lives as long as this.
  virtual void* segment(std::uint64_t bytes) = 0;
  /// Zeroed, aligned to 64 bytes: a rank's part of a symmetric buffer; lives as long as this.
  virtual std::byte* buffer(std::uint32_t rank, std::uint64_t bytes, Contents contents) = 0;
  /// From a buffer of data of one rank to one of another; it is there when this returns. The fabric's thread.
  virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
};

struct FabricOptions {
  std::uint32_t nodes = 1;
  std::uint32_t ranks_per_node = 1;
  std::uint32_t lanes = 8;
  std::uint32_t rings = 1;
  std::uint32_t log2_slots = 4;  ///< small on purpose: full rings happen
  /// 0: every put is delivered at once, in ring order. Else: puts wait for a random time, channels overtake
  /// each other, completions come late.
  std::uint64_t seed = 1;
  bool across_nodes = false;  ///< rank r is on node r % nodes; else ranks are numbered node by node

  std::uint32_t node_of(std::uint32_t rank) const {
    return across_nodes ? rank % nodes : rank / ranks_per_node;
  }
  std::uint32_t local_of(std::uint32_t rank) const {
    return across_nodes ? rank / nodes : rank % ranks_per_node;
  }
};

class FakeFabric {
 public:
  /// `memory`: null for host memory.
  explicit FakeFabric(const FabricOptions& options, std::unique_ptr<FabricMemory> memory = nullptr);
  ~FakeFabric();  ///< stops the draining thread

  const FabricOptions& options() const { return options_; }
  std::uint32_t world() const { return options_.nodes * options_.ranks_per_node; }
  const kernels::GroupView& group(std::uint32_t rank) const { return ranks_[rank]->view; }

  /// A symmetric buffer of `bytes` zeroed bytes on every rank; the views by rank. Lives as long as the
  /// fabric. Not while operations run.
  std::vector<kernels::SymmetricView> symmetric(std::uint64_t bytes, Contents contents = Contents::kData);

  /// What a daemon does when a group fails: fills every rank's failure record and sets the abort words.
  void fail_group(StatusCode code, std::int32_t culprit, const std::string& node, const std::string& text);

  /// First bad slot or failed copy seen, "" when there was none. It also fails the group.
  std::string error() const;

  /// Payload bytes and puts that `source` has sent to ranks of other nodes.
  std::uint64_t wire_bytes(std::uint32_t source) const;
  /// Puts delivered from `source` to `target` on `lane`.
  std::uint64_t delivered(std::uint32_t source, std::uint32_t target, std::uint32_t lane) const;
  /// For a wait that gave up: of every channel with puts how many were read from the ring and how many
  /// delivered, and how long ago the last ones were. A put that was read long before it was delivered was
  /// held up here; one that was read late was posted late, or the draining thread was held up by another.
  std::string traffic() const;

 private:
  struct Rank {
    std::unique_ptr<std::atomic<std::uint64_t>[]> heads;
    /// A ring as the proxy sees it: those of threads first, then those of the GPU.
    struct Drain {
      abi::WorkSlot* slots;
      std::uint64_t* tail;
      std::uint64_t consumed = 0;
    };
    std::vector<Drain> drains;
    kernels::GroupView view;
  };
  struct Buffer {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  struct Channel;

  void make_rank(std::uint32_t rank);
  void serve();
  bool drain_rings();
  bool accept(std::uint32_t rank, const abi::WorkRequest& request);
  void fail(std::uint32_t rank, StatusCode code, const std::string& text);
  bool deliver_turn();
  bool deliver(Channel& channel);
  std::string problem(std::uint32_t rank, const abi::WorkRequest& request) const;
  std::uint64_t random();

  FabricOptions options_;
  std::unique_ptr<FabricMemory> memory_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::vector<Buffer>> regions_;  ///< [index][rank]
  std::vector<std::unique_ptr<Channel>> channels_;
  std::uint64_t random_state_;
  mutable std::mutex mutex_;  ///< regions_, error_
  std::string error_;
  std::vector<std::atomic<std::uint64_t>> wire_bytes_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Runs `body(rank)` for every rank in a thread of its own; the statuses by rank.
std::vector<Status> run_ranks(std::uint32_t world, const std::function<Status(std::uint32_t)>& body);

}  // namespace mkernel::test
