// Timelines of launches on the cuda executor: every tile, unit and chunk is there once, in its role's time,
// and the clocks of two GPUs (where there are two) agree on what came first.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu_ranks.h"

using namespace mkernel;
using namespace mkernel::kernels;
using namespace mkernel::test;
using Kind = TraceEvent::Kind;

namespace {

constexpr std::int64_t kTile = 128;
const GemmShape kShape{16 * kTile, 8 * kTile, 1024};

template <class Op>
typename Op::Options whole_tiles() {
  typename Op::Options options{.tile = Sm90Tile::k128x128};
  if constexpr (requires { options.tail_tiles; }) options.tail_tiles = 0;
  return options;
}

using Timeline = std::vector<TraceEvent>;

/// One traced launch on every rank, its result verified; then one that is not traced. In steps: on a shared
/// GPU reading a timeline waits for all ranks' launches.
std::vector<Timeline> traced_launch(GpuRanks& all) {
  std::vector<Trace> traces(all.size());
  require_ok(all.each([&](int rank) -> Status {
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    return all.run(rank, {.deadline = kGpuOptions.deadline, .trace = &traces[rank]});
  }));
  std::vector<Timeline> timelines(all.size());
  require_ok(all.each([&](int rank) -> Status {
    timelines[rank] = traces[rank].take();
    CHECK(traces[rank].lost() == 0);
    return all.verify(rank);
  }));
  require_ok(all.each([&](int rank) { return all.run(rank); }));
  for (Trace& trace : traces) CHECK(trace.take().empty());
  return timelines;
}

std::int64_t count(const Timeline& timeline, const std::string& name, std::int32_t warp) {
  return std::count_if(timeline.begin(), timeline.end(),
                       [&](const TraceEvent& e) { return e.name == name && e.warp == warp; });
}

void check_order(const Timeline& timeline) {
  constexpr std::uint64_t kStartNs = 1000;                        // warps of a CTA need not begin in order
  std::map<std::uint32_t, std::vector<const TraceEvent*>> roles;  // by CTA, one after the other
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint64_t> last_end;
  for (const TraceEvent& e : timeline) {
    REQUIRE(e.begin_ns <= e.end_ns);
    if (e.kind != Kind::kRole) continue;
    std::vector<const TraceEvent*>& of_cta = roles[e.track];
    if (!of_cta.empty()) REQUIRE(of_cta.back()->end_ns <= e.begin_ns);
    of_cta.push_back(&e);
  }
  for (const TraceEvent& e : timeline) {
    const std::vector<const TraceEvent*>& of_cta = roles[e.track];
    CHECK(std::any_of(of_cta.begin(), of_cta.end(), [&](const TraceEvent* role) {
      return role->begin_ns <= e.begin_ns + kStartNs && e.end_ns <= role->end_ns;
    }));
    if (e.warp < 0 || e.name == "sum" || e.name == "copy") continue;  // those two hold waits
    std::uint64_t& before = last_end[{e.track, e.warp}];
    CHECK(before <= e.begin_ns);  // the others of a warp come one after the other
    before = e.end_ns;
  }
}

}  // namespace

TEST_CASE_TEMPLATE("every CTA's role, every tile once, all in order, and the result is right", Op, AgGemm,
                   GemmRs, GemmAr) {
  if (!peers_or_skip(1)) return;
  GpuRanks all = gpu_ranks<Op>(2, kShape, whole_tiles<Op>());
  for (const Timeline& timeline : traced_launch(all)) {
    check_order(timeline);
    const auto ctas = count(timeline, "compute", -1), comm = count(timeline, "intra_comm", -1);
    CHECK(ctas > 0);
    CHECK(comm > 0);
    const auto tiles = kShape.m / kTile * (kShape.n / kTile);
    CHECK(count(timeline, "product", 4) == tiles);  // the leaders of the two multiplying warpgroups
    CHECK(count(timeline, "product", 8) == tiles);
    CHECK(count(timeline, "store", 1) == tiles);
    CHECK(count(timeline, "store", 2) == tiles);
    CHECK(count(timeline, "load", 0) >= tiles);
  }
}

TEST_CASE("a CTA that has pushed and then computes has two roles, one after the other") {
  if (!peers_or_skip(1)) return;
  auto options = whole_tiles<AgGemm>();
  options.comm_ctas = 6;
  options.late_tiles = 5;  // of a cluster's tiles
  GpuRanks all = gpu_ranks<AgGemm>(2, kShape, options);
  for (const Timeline& timeline : traced_launch(all)) {
    check_order(timeline);
    CHECK(count(timeline, "intra_comm", -1) == 6);
    std::map<std::uint32_t, int> roles;
    for (const TraceEvent& e : timeline) roles[e.track] += e.kind == Kind::kRole ? 1 : 0;
    CHECK(std::count_if(roles.begin(), roles.end(), [](const auto& cta) { return cta.second == 2; }) == 4);
    CHECK(count(timeline, "product", 4) == kShape.m / kTile * (kShape.n / kTile));
  }
}

TEST_CASE("a chunk is seen after it was told, although two GPUs say so") {
  if (!peers_or_skip(1)) return;
  // Half a round trip to a GPU: what the clocks may be apart at most.
  constexpr std::uint64_t kApartNs = 2000;
  GpuRanks all = gpu_ranks<AgGemm>(2, kShape, whole_tiles<AgGemm>());
  const std::vector<Timeline> timelines = traced_launch(all);
  std::int64_t waits = 0;
  for (int rank = 0; rank < 2; ++rank) {
    // By chunk: when the last of the sender's CTAs began to tell of it.
    const Timeline& sender = timelines[1 - rank];
    const auto told = [&](std::int64_t chunk) {
      std::map<std::uint32_t, std::uint64_t> begin;  // by CTA
      for (const TraceEvent& e : sender) {
        if (e.name != "signal" || e.index < chunk) continue;
        std::uint64_t& first = begin[e.track];
        first = first == 0 ? e.begin_ns : std::min(first, e.begin_ns);
      }
      std::uint64_t last = 0;
      for (const auto& [cta, at] : begin) last = std::max(last, at);
      return last;
    };
    for (const TraceEvent& e : timelines[rank]) {
      if (e.kind != Kind::kWait || e.name != "a chunk") continue;
      ++waits;
      const std::uint64_t sent = told(e.index);
      REQUIRE(sent > 0);
      CHECK(e.end_ns + kApartNs >= sent);
    }
  }
  CHECK(waits > 0);
}

TEST_CASE_TEMPLATE("sums and copies hold their waits, in every warp that has time for them", Op, GemmRs,
                   GemmAr) {
  if (!peers_or_skip(1)) return;
  GpuRanks all = gpu_ranks<Op>(2, kShape, whole_tiles<Op>());
  for (const Timeline& timeline : traced_launch(all)) {
    const auto ctas = count(timeline, "compute", -1);
    for (std::int32_t warp = 4; warp < 12; ++warp) CHECK(count(timeline, "sum", warp) >= ctas);
    CHECK((count(timeline, "copy", 4) >= ctas) == (all.operation(0).kind() == OpKind::kGemmAr));
    for (const TraceEvent& wait : timeline) {
      if (wait.name != "a tile") continue;
      CHECK(std::any_of(timeline.begin(), timeline.end(), [&](const TraceEvent& e) {
        return e.name == "sum" && e.track == wait.track && e.warp == wait.warp &&
               e.begin_ns <= wait.begin_ns && wait.end_ns <= e.end_ns;
      }));
    }
  }
}

TEST_CASE("a launch that a graph captures is not traced, and says so") {
  if (!peers_or_skip(1)) return;
  GpuRanks all = gpu_ranks<AgGemm>(1, {64, 64, 64});
  require_ok(all.each([&](int rank) -> Status {
    Trace trace;
    const auto captured = bench::GpuGraph::capture(all.stream(rank), [&] {
      return all.operation(rank).enqueue(all.arguments(rank), {.trace = &trace}, all.stream(rank).get());
    });
    CHECK(captured.status().code() == StatusCode::kInvalidArgument);
    MK_RETURN_IF_ERROR(all.fill(rank, 1));
    MK_RETURN_IF_ERROR(all.run(rank));
    CHECK(trace.take().empty());
    return all.verify(rank);
  }));
}
