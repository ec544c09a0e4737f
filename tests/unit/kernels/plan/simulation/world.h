// What the simulated operations have in common: ranks with memory and launches queued, channels between them,
// the poller and the end of a launch (kernels/cuda/launch/poller.cuh, first_cta.cuh, end.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/plan/topology.h"
#include "tests/unit/kernels/plan/simulation/memory.h"
#include "tests/unit/kernels/plan/simulation/scheduler.h"

namespace mkernel::test {

/// What a simulation does wrong on purpose, to show that it would be seen.
enum class Fault {
  kNone,
  kGoesOn,           ///< launches behind a failed one do their work
  kOneHalf,          ///< for the slabs or slots
  kOnePartialsHalf,  ///< for the partials of other nodes
  kNoCompletions,    ///< a launch ends before its puts are completed
  kNoDummySignals,   ///< ranks without rows neither signal nor are waited for
  kCountFirst,       ///< a count is raised before the data is written
  kNoArrivals,       ///< chunks of other nodes are read without a wait
  kOneLeaverLess,    ///< the poller does not wait for the last role that needs it
  kOwnSumsFirst,     ///< own rows are summed before those of other nodes
  kLateFlush,        ///< a warp waits with a finished unit that it has not signalled
  kCopiesFirst,      ///< all warps begin with copies
  kNoMarks,          ///< marked data are read and not marked again
  kLateMarks,        ///< a launch ends before its marks are written
  kMarkedUnwaited,   ///< marked data are read without a wait
  // Of the mixture of experts:
  kRowsBeforeCounts,    ///< a rank pushes before the counts of all are in
  kOneCounts,           ///< counts of all launches lie in one place
  kSecondFirst,         ///< tasks of the second product are handed out before those of the first
  kStoreWaits,          ///< a CTA stores a tile when it has the inputs of the next one
  kHiddenUnwaited,      ///< the second product does not wait for the first
  kBlockUnwaited,       ///< the first product does not wait for its rows
  kSumsUnwaited,        ///< tokens are summed without a wait
  kForwardsFirst,       ///< warps forward what has arrived before they stage what others wait for
  kSumsFirst,           ///< all CTAs sum before they compute
  kFirstColumnSignals,  ///< finished rows are signalled when one column tile is out
  kLackingRows,         ///< the owner does not add what a block lacks
  kRefusalUncounted,    ///< a launch that is refused leaves arrived[] alone
  kWorkNotZeroed,       ///< work counters go on from the launch before
  kSharedUnwaited,      ///< tokens are summed without a wait for the row of the shared expert
  // Of the backward pass of ring attention:
  kStoresAnyway,     ///< a task whose waits gave up sends its gradients of keys
  kNodeSumsUnwaited  ///< own keys are summed without a wait for the sums of other nodes
};

struct Settings {
  std::uint64_t seed = 0;
  Fault fault = Fault::kNone;
  std::uint64_t expire_one_in = 0;  ///< steps, on average, until a wait reaches its deadline; 0: none does
  std::uint64_t launches = 4;
};

/// An ordered stream of puts from one rank to another. Puts in flight pass each other; the counts do not.
struct Channel {
  std::int32_t from = 0, to = 0, lane = 0;
  std::uint64_t posted = 0;
  std::vector<bool> visible, completed;         ///< by put
  std::uint64_t arrivals = 0, completions = 0;  ///< as published in host memory
  Word arrivals_seen, completions_seen;         ///< what the pollers have handed on: at `to`, at `from`
};

struct SimulatedRank {
  SimulatedRank(std::uint64_t workspace_bytes, std::uint64_t result_bytes, std::uint64_t cell_bytes)
      : workspace(workspace_bytes, cell_bytes), result(result_bytes, cell_bytes) {}

  Memory workspace;
  Memory result;  ///< c, or its rows of c
  bool stopped = false;
  std::uint64_t exited_before = 0;
  Word exited;  ///< LaunchControl's
  Word over;    ///< CTAs and pollers that have ended, over all launches
  Word news;    ///< what the poller may have to look at
  std::vector<Channel*> in, out;
};

class World {
 public:
  World(const kernels::Topology& topology, const Settings& settings, std::int32_t lanes)
      : topology_(topology),
        settings_(settings),
        scheduler_(settings.seed, static_cast<std::int32_t>(topology.world()), settings.expire_one_in),
        lanes_(lanes) {}
  virtual ~World() = default;
  World(const World&) = delete;

  /// All launches of all ranks. "" or what was wrong.
  std::string run();
  /// Whether a rank has reported a launch as good whose result is not that launch's.
  bool lied() const { return lied_; }
  /// Launches of all ranks that were reported as good, and ranks that have failed.
  std::uint64_t good_launches() const { return good_launches_; }
  std::int32_t failed_ranks() const;

 protected:
  /// Spawns the CTAs of a launch. Each of them ends with end_cta(), CTA 0 with cta_over().
  virtual void begin_launch(std::int32_t rank, std::uint64_t epoch) = 0;
  virtual std::int32_t ctas(std::int32_t rank) const = 0;
  /// How often `exited` is raised in a launch: what the poller waits for.
  virtual std::uint64_t leavers(std::int32_t rank) const = 0;
  /// What a launch writes of the rank's result.
  virtual Span result_of(std::int32_t index, std::uint64_t /*epoch*/) {
    return {0, rank(index).result.bytes()};
  }
  /// After all launches, when none has failed: "" or which count is not what the plan says.
  virtual std::string check_counts() = 0;

  /// `word_bytes` of its own workspace, `data_bytes` of a half of the lent one: the same on every rank.
  void add_rank(std::uint64_t word_bytes, std::uint64_t data_bytes, std::uint64_t result_bytes,
                std::uint64_t cell_bytes);

  bool has(Fault fault) const { return settings_.fault == fault; }
  /// Where the half of a launch begins: behind the words, in one memory. `one_half`: the fault for which it
  /// is always the same.
  std::uint64_t half_at(std::uint64_t epoch, Fault one_half) const {
    const bool always_first = one_half != Fault::kNone && has(one_half);
    return lent_at_ + kernels::lent_half_at(always_first ? 0 : epoch, half_bytes_);
  }
  std::int32_t nodes() const { return static_cast<std::int32_t>(topology_.nodes()); }
  std::int32_t ranks_per_node() const { return static_cast<std::int32_t>(topology_.ranks_per_node()); }
  std::int32_t node_of(std::int32_t rank) const { return rank / ranks_per_node(); }
  std::int32_t local_of(std::int32_t rank) const { return rank % ranks_per_node(); }
  /// Ranks are numbered node by node.
  std::int32_t rank_at(std::int32_t node, std::int32_t local) const {
    return node % nodes() * ranks_per_node() + local % ranks_per_node();
  }
  SimulatedRank& rank(std::int32_t index) { return ranks_[static_cast<std::size_t>(index)]; }
  Channel& channel(std::int32_t from, std::int32_t to, std::int32_t lane) {
    return channels_.at({from, to, lane});
  }
  const std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Channel>& channels() const {
    return channels_;
  }

  void begin_write(Memory& memory, const Span& span) {
    const std::string problem = memory.begin_write(span);
    if (!problem.empty() && !has(Fault::kGoesOn)) scheduler_.report(problem);
  }
  /// Whether memory holds what the launch needs; if not, and no wait may give up, that is an error.
  bool holds(std::int32_t reader, std::uint64_t epoch, Memory& memory, const Span& span, Stamp first,
             const char* what);
  /// Writes c. Every element is computed once in a launch.
  void write_result(std::int32_t rank, std::uint64_t epoch, const Span& span, bool right);
  void put(Channel& channel, std::uint64_t from, std::uint64_t to, std::uint64_t bytes);

  /// All roles of a CTA but 0 have ended.
  void end_cta(std::int32_t index) {
    count_out(index);
    cta_over(index);
  }
  void count_out(std::int32_t index) {
    scheduler_.add(rank(index).exited, 1);
    scheduler_.add(rank(index).news, 1);
  }
  void cta_over(std::int32_t index) { scheduler_.add(rank(index).over, 1); }

  const kernels::Topology topology_;
  const Settings settings_;
  std::deque<SimulatedRank> ranks_;
  Scheduler scheduler_;

 private:
  std::uint64_t lent_at_ = 0, half_bytes_ = 0;  ///< in every rank's memory
  struct Put {
    std::uint64_t index, from, to, bytes;
    std::vector<Stamp> stamps;  ///< of the source when it was put
  };

  Task launches(std::int32_t index);
  Task poller(std::int32_t index);
  Task carry(Channel& channel, Put put);
  Task complete(Channel& channel, Put put);
  void check_source(Channel& channel, const Put& put);
  void check_result(std::int32_t index, std::uint64_t epoch);

  std::int32_t lanes_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Channel> channels_;
  bool lied_ = false;
  std::uint64_t good_launches_ = 0;
};

}  // namespace mkernel::test
