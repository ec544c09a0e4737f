// What the operations that gather rows have in common as step machines: what kernels/cuda/comm/fan_out.cuh
// does with streams of rows, without the data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/plan/push_gather_plan.h"
#include "tests/unit/kernels/plan/simulation/world.h"

namespace mkernel::test {

class FanOutWorld : public World {
 protected:
  using Turn = kernels::StreamTurns::Turn;
  using VisitRow = std::function<void(const Span& span, Stamp first)>;

  /// A block of rows of one of the tensors that a source has.
  struct Chunk {
    std::int32_t source, tensor, chunk;
    std::int32_t target = -1;  ///< what target() says of its turn
  };
  /// What the roles of a pushing CTA share.
  struct Pushing {
    std::int32_t rank, share;
    std::uint64_t epoch;
    Word loaded{}, issued{}, freed{};        ///< chunks: in a stage, on their way, whose stage is free again
    Word ended{};                            ///< roles
    std::uint64_t lost = ~std::uint64_t{0};  ///< the chunk that did not come, nor anything after it
  };

  FanOutWorld(const kernels::Topology& topology, const Settings& settings, std::int32_t lanes)
      : World(topology, settings, lanes), stages_(settings.seed % 2 == 0 ? 1 : 12) {}

  // The plan of rank `index`.
  virtual std::int32_t comm_ctas(std::int32_t index) const = 0;
  virtual std::int32_t turns(std::int32_t index) const = 0;
  virtual Turn turn(std::int32_t index, std::int32_t number) const = 0;
  /// The rank of the node that a turn's chunk goes to, counted from the next one on; negative: all.
  virtual std::int32_t target(std::int32_t /*index*/, std::int32_t /*number*/) const { return -1; }
  virtual Chunk chunk_of(std::int32_t index, const Turn& turn) const = 0;
  virtual std::int32_t chunks_of(std::int32_t source) const = 0;
  /// Whether the rank stores its own rows in its own workspace, too: at least when they are put from there.
  virtual bool keeps_own(std::int32_t /*index*/) const { return rails() > 0; }
  /// Where shares of the chunk are counted at `index`.
  virtual Word& ready(std::int32_t index, const Chunk& chunk) = 0;
  virtual std::uint64_t ready_count(std::uint64_t epoch) const = 0;
  /// Puts of the source that have arrived when this chunk has.
  virtual std::uint64_t arrivals(std::uint64_t epoch, const Chunk& chunk) const = 0;
  /// The rows of a share of the chunk, where they lie at `index`.
  virtual void for_each_row(std::int32_t index, std::uint64_t epoch, const Chunk& chunk, std::int32_t share,
                            const VisitRow& visit) = 0;
  // Its roles.
  virtual Task inter_send(Pushing& shared) = 0;
  /// Warps of a pushing CTA that do something else, number 0 .. besides() - 1.
  virtual std::uint64_t besides(std::int32_t /*index*/, std::int32_t /*share*/) const { return 0; }
  virtual Task beside(Pushing& /*shared*/, std::uint64_t /*number*/) { co_return; }
  /// What CTA 0 waits for when its own chunks are out, or when it has computed.
  virtual Task wait_at_end(std::int32_t index, std::uint64_t epoch) = 0;
  /// Whether CTA 0 computes, too: it counts itself out once then, as the others do.
  virtual bool first_computes(std::int32_t /*index*/) const { return false; }
  /// All CTAs but those that push; and those when they have pushed, CTA 0 only if it computes.
  virtual Task compute(std::int32_t index, std::uint64_t epoch, std::int32_t cta) = 0;

  void begin_launch(std::int32_t index, std::uint64_t epoch) override;
  std::uint64_t leavers(std::int32_t index) const override {
    return static_cast<std::uint64_t>(ctas(index) - 1) + (first_computes(index) ? 1 : warps_of_first(index));
  }
  std::int32_t rails() const { return nodes() - 1; }
  /// Rail peers from the next node on.
  std::int32_t rail(std::int32_t index, std::int32_t i) const {
    return rank_at(node_of(index) + 1 + i, local_of(index));
  }
  Scheduler::Wait wait_chunk(std::int32_t index, std::uint64_t epoch, const Chunk& chunk) {
    return scheduler_.wait(ready(index, chunk), ready_count(epoch));
  }
  /// A warp of a pushing CTA is through.
  void end_warp(Pushing& shared) {
    if (shared.share == 0 && !first_computes(shared.rank)) count_out(shared.rank);
    scheduler_.add(shared.ended, 1);
  }
  /// inter_send, when all is put or a wait gave up: until `puts` to every rail peer are completed.
  Task end_sending(Pushing& shared, bool gave_up, std::uint64_t puts);
  /// "" or that it does not carry `puts` puts.
  static std::string check_channel(const Channel& channel, std::uint64_t puts);
  /// "" or which chunks of `source` rank `index` has not counted to the end.
  std::string check_ready(std::int32_t index, std::int32_t source, std::int32_t tensors);

 private:
  static constexpr std::uint64_t kStorers = 3;

  /// Warps of CTA 0 that have something to do, but for the poller; they count themselves out.
  std::uint64_t warps_of_first(std::int32_t index) const {
    return 1 + kStorers + (rails() > 0 ? 1 : 0) + besides(index, 0);
  }
  /// Chunks of all streams in the order in which they are pushed, without those that a stream does not have.
  std::vector<Chunk> push_order(std::int32_t index) const;

  Task computing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta);
  Task pushing_cta(std::int32_t index, std::uint64_t epoch, std::int32_t cta);
  Task do_beside(Pushing& shared, std::uint64_t number);
  Task load(Pushing& shared);
  Task store(Pushing& shared, std::uint64_t storer);
  Task signal(Pushing& shared, Chunk chunk);
  /// Whether a turn's chunk goes to the `ahead`th rank after this one.
  static bool goes_to(const Chunk& chunk, std::int32_t ahead) {
    return chunk.target < 0 || chunk.target == ahead - 1;
  }

  const std::uint64_t stages_;  ///< chunks that a pushing CTA may have loaded and not stored
};

}  // namespace mkernel::test
