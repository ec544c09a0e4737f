// The mixture of experts on the GPU as step machines: routing, exchange of counts, pushed rows, tiles of two
// products, sums of finished rows, and what crosses nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kernels/plan/chunked_routing.h"
#include "kernels/plan/expert_blocks.h"
#include "kernels/plan/expert_exchange_plan.h"
#include "kernels/plan/expert_routing.h"
#include "kernels/plan/expert_table.h"
#include "kernels/plan/expert_tasks.h"
#include "kernels/plan/host_expert_tasks.h"
#include "kernels/plan/layer_tasks.h"
#include "tests/unit/kernels/plan/simulation/world.h"

namespace mkernel::test {

/// What the launches of a case are made of.
struct MoeLoad {
  enum Pattern {
    kAnyExperts,    ///< up to max_tokens tokens of any experts; some ranks have none
    kOneExpert,     ///< every token goes to the same expert first
    kFewExperts,    ///< of a third of the experts
    kOneToken,      ///< of one rank, another one in every launch
    kBadEntry,      ///< as kAnyExperts, but every other launch has an entry that is refused
    kOftenTooMany,  ///< as kAnyExperts, but the pool is too small for about every other launch
  };

  Pattern pattern = kAnyExperts;
  std::int32_t experts = 4, topk = 2, max_tokens = 6;
  std::int32_t columns1 = 2, columns2 = 2, lead = 2;
  kernels::ExpertSectionCut sections{};
  std::int32_t shared_columns1 = 0;  ///< of the shared expert; 0: there is none
  std::int32_t dispatch_ctas = 2, compute_ctas = 2;
  std::int32_t push_warps = 2, sum_warps = 2;  ///< of a CTA
  std::int32_t push_unit = 2;                  ///< rows
  std::int32_t pieces = 3;                     ///< of what crosses to a node
  std::int32_t taken_ahead = 2;                ///< tasks that a CTA holds beside the one that it loads
  bool early_sums = false;                     ///< dispatching CTAs sum before they compute
  bool sums_beside = true;                     ///< a warp of every other CTA sums while that computes
};

/// The routing of one rank's tokens in one launch.
struct MoeTokens {
  std::int32_t topk = 1;
  std::vector<std::int32_t> experts;  ///< [tokens, topk]
  std::vector<float> weights;

  std::int32_t tokens() const { return static_cast<std::int32_t>(experts.size()) / topk; }
  kernels::RoutedTokens view() const { return {experts.data(), weights.data(), tokens(), topk}; }
};

class MoeWorld : public World {
 public:
  using Plan = kernels::ExpertExchangePlan;
  static constexpr std::uint64_t kCell = 8;  ///< of a row's column tile, of a token's result, of an origin

  static Plan plan_of(const MoeLoad& load, const kernels::Topology& topology);
  MoeWorld(const MoeLoad& load, const kernels::Topology& topology, const std::vector<Plan>& plans,
           const Settings& settings);

  /// Launches of rank 0 that were computed, and those that were refused.
  std::uint64_t computed() const { return computed_; }
  std::uint64_t refused() const { return refused_; }

 private:
  using Tile = kernels::ExpertTasks::Task;

  /// Units of pushes as one warp takes them.
  struct Pushes {
    std::int32_t taken = -1;  ///< the first row of one that is not pushed yet; < 0: there is none
    std::int32_t end = 0;     ///< units that begin before this row are pushed
    bool left = true;         ///< whether there was one at the last look
  };

  /// What all ranks' routing in a launch comes to: the table that each of them builds.
  struct Launch {
    std::vector<MoeTokens> tokens;                  ///< by rank
    std::vector<kernels::ChunkedRouting> routings;  ///< by rank
    std::vector<std::int32_t> counts;
    std::unique_ptr<kernels::HostExpertTable> table;
    std::vector<std::vector<kernels::ExpertRowOrigin>> origins;  ///< by owner and pool row
    bool refused = false;
  };
  /// A row of a tile.
  struct Row {
    std::int32_t number;  ///< of the pool; of the shared expert's a token
    kernels::ExpertRowOrigin origin;
  };
  /// What warps or CTAs take units of, in the order in which one of them may do several.
  enum KindOfWork { kStaging, kPushing, kForwarding, kTiles, kCrossedSums, kOwnSums, kKindsOfWork };
  /// A rank's private memory in a launch.
  struct Private {
    std::unique_ptr<kernels::ChunkedRouting> routing;
    bool right = true;  ///< the counts that the table was made of; else its result is wrong
    kernels::OwnedExperts mine;
    std::unique_ptr<kernels::HostExpertTasks> tasks;
  };
  /// A rank's private memory over all launches.
  struct Counts {
    Word chunks{}, placed{}, tabled{};
    std::int32_t work[2][kKindsOfWork] = {};  ///< counters
    std::deque<Private> launches;
  };
  struct Pushed {
    kernels::ExpertRowOrigin origin;
    kernels::PoolPlace place;
  };
  struct Cta {
    std::vector<std::int32_t> taken;  ///< tasks
    std::vector<bool> right;          ///< their inputs
    bool all_loaded = false;
    bool gave_up = false;  ///< a wait of the CTA did: it begins nothing more
    Word loaded{}, stored{};
    Word pushed{}, computed{}, summed{}, beside{}, crossed{};  ///< roles that have ended
  };

  const Launch& launch(std::uint64_t epoch);
  Pushed pushed(const Launch& of, std::int32_t source, const kernels::ChunkedRouting::Push& push,
                const kernels::ExpertRowOrigin& origin) const;
  void find_origins(Launch& made) const;
  MoeTokens draw_tokens(std::int32_t index, std::uint64_t epoch) const;
  std::int32_t world() const { return static_cast<std::int32_t>(topology_.world()); }
  Counts& counts(std::int32_t index) { return counts_[static_cast<std::size_t>(index)]; }
  Private& own(std::int32_t index, std::uint64_t epoch) {
    return counts(index).launches[static_cast<std::size_t>(epoch)];
  }
  Memory& memory(std::int32_t index) { return rank(index).workspace; }
  Word& word(std::int32_t index, std::uint64_t at) { return memory(index).word(at); }
  std::int32_t take(std::int32_t index, std::uint64_t epoch, KindOfWork kind) {
    return counts(index).work[epoch & 1][kind]++;
  }
  /// A token's rows on the node of its source's rail peer, as a unit of work there.
  struct Crossed {
    const kernels::ChunkedRouting* routing;  ///< of the source
    std::int32_t turn, source, seen;  ///< the source's node turn here, its rank; this node's turn there
    std::int32_t rows;                ///< that cross from there
  };
  Crossed crossed(std::int32_t index, std::uint64_t epoch, std::int32_t turn);
  std::int32_t most_crossed(std::int32_t index, std::uint64_t epoch);
  Stamp crossing_stamp(std::uint64_t epoch, std::int32_t from, std::int32_t turn, std::int32_t row) const {
    return stamp(epoch, Content::kCrossing, from,
                 std::int64_t{turn * plan_.max_tokens + row} *
                     static_cast<std::int64_t>(plan_.crossing_bytes() / kCell));
  }
  Stamp sum_stamp(std::uint64_t epoch, std::int32_t from, std::int32_t turn, std::int32_t returning) const {
    return stamp(epoch, Content::kNodeSum, from,
                 std::int64_t{turn * plan_.max_tokens + returning} * plan_.last_columns());
  }
  std::uint64_t counts_at(std::uint64_t epoch, std::int32_t source) const {
    return plan_.counts(has(Fault::kOneCounts) ? 0 : epoch, source);
  }
  std::uint64_t dispatching(std::uint64_t epoch) const {
    return (epoch + 1) * static_cast<std::uint64_t>(load_.dispatch_ctas);
  }

  std::int32_t ctas(std::int32_t) const override { return load_.dispatch_ctas + load_.compute_ctas; }
  std::uint64_t leavers(std::int32_t index) const override { return static_cast<std::uint64_t>(ctas(index)); }
  Span result_of(std::int32_t index, std::uint64_t epoch) override;
  std::string check_counts() override;
  void begin_launch(std::int32_t index, std::uint64_t epoch) override;

  Task cta(std::int32_t index, std::uint64_t epoch, std::int32_t number);
  Task work(std::int32_t index, std::uint64_t epoch, std::int32_t number, Cta& shared);
  Task route(std::int32_t index, std::uint64_t epoch, std::int32_t number, Cta& shared);
  Task send_counts(std::int32_t index, std::uint64_t epoch, std::int32_t to);
  Task build_table(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task add_lacking_rows(std::int32_t index, std::uint64_t epoch, std::int32_t number);
  Task push(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task stage(std::int32_t index, std::uint64_t epoch, Pushes& pushes);
  Task push_unit(std::int32_t index, std::uint64_t epoch, Pushes& pushes);
  Task forward(std::int32_t index, std::uint64_t epoch, Pushes& pushes);
  Task write_rows(std::uint64_t epoch, std::vector<Pushed> unit, bool right);
  Task forward_counts(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task inter_send(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task put_all(std::int32_t index, std::uint64_t epoch);
  Task sum_crossed(std::int32_t index, std::uint64_t epoch);
  Task sum_own(std::int32_t index, std::uint64_t epoch);
  Task push_warp(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task compute(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task load(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task store(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task store_hidden(std::int32_t index, std::uint64_t epoch, Tile task, bool right);
  Task store_finished(std::int32_t index, std::uint64_t epoch, Tile task, bool right);
  Task sum(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task sum_warp(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task sum_beside(std::int32_t index, std::uint64_t epoch, Cta& shared);
  Task sum_tokens(std::int32_t index, std::uint64_t epoch);

  static Stamp row_stamp(std::uint64_t epoch, const kernels::ExpertRowOrigin& origin) {
    return stamp(epoch, Content::kRows, origin.rank, std::int64_t{origin.entry} * 2);
  }
  static Stamp origin_stamp(std::uint64_t epoch, const kernels::ExpertRowOrigin& origin) {
    return stamp(epoch, Content::kOrigin, origin.rank, origin.entry);
  }
  /// Of a row's column tile, in h or of a finished row.
  Stamp tile_stamp(std::uint64_t epoch, Content content, const kernels::ExpertRowOrigin& origin,
                   std::int32_t column) const {
    const std::int32_t columns =
        content == Content::kHidden ? std::max(plan_.columns1, plan_.shared_columns1) : plan_.last_columns();
    return stamp(epoch, content, origin.rank, std::int64_t{origin.entry} * columns + column);
  }
  Tile task_at(std::int32_t index, std::uint64_t epoch, std::int32_t number);
  kernels::SharedExpertTiles shared_expert_tiles(std::int32_t index, std::uint64_t epoch);
  Task wait_task(std::int32_t index, std::uint64_t epoch, std::int32_t number, Cta& shared, bool& any);
  Task wait_inputs(std::int32_t index, std::uint64_t epoch, Tile task, Cta& shared);
  bool own_rows_hold(std::int32_t index, std::uint64_t epoch, std::int32_t token,
                     const std::vector<std::int32_t>& near);
  bool inputs_hold(std::int32_t index, std::uint64_t epoch, const Tile& task);
  std::vector<Row> rows_of(std::int32_t index, std::uint64_t epoch, const Tile& task);
  // Of the experts or of the shared expert.
  std::uint64_t hidden(const Tile& task, std::int32_t row) const {
    return task.shared ? plan_.shared_hidden(row) : plan_.hidden(row);
  }
  std::uint64_t hidden_word(const Tile& task, std::int32_t column) const {
    return task.shared ? plan_.shared_hidden_word(task.block, column) : plan_.hidden_word(task.block, column);
  }
  std::uint64_t stored_word(const Tile& task) const {
    return task.shared ? plan_.shared_stored(task.block) : plan_.stored(task.block);
  }
  /// A tile that is computed once in a launch.
  void begin_tile(std::int32_t at_rank, const Span& span, Stamp first);

  const MoeLoad load_;
  const Plan plan_;
  std::deque<Launch> launches_;
  std::deque<Counts> counts_;
  std::uint64_t computed_ = 0, refused_ = 0;
};

}  // namespace mkernel::test
