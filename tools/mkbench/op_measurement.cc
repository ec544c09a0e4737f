#include "tools/mkbench/op_measurement.h"

#include <algorithm>
#include <chrono>
#include <iostream>

#include "kernels/cuda/memory/hopper.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/timeline.h"

namespace mkernel::bench {
namespace {

/// Launches behind the first one of an operation that it is compared with, at least.
constexpr int kLaterLaunches = 8;

/// As it is recorded; 0 stands for what was not asked for.
template <class Number>
nlohmann::json number_or_null(Number value) {
  return value == 0 ? nlohmann::json() : nlohmann::json(value);
}

}  // namespace

Result<Row> OpMeasurement::measure() {
  Row row;
  MK_RETURN_IF_ERROR(first_launches(row));
  describe(row);
  for (int done = 0; done < options_.iterations; done += per_round()) MK_RETURN_IF_ERROR(round(row));
  row.milliseconds = ours_.milliseconds;
  row.wire_bytes = operation().wire_bytes();
  row.shape["share"] = number_or_null(options_.share);
  row.shape["sms"] = number_or_null(options_.plan.sms);
  row.shape["link_gbytes"] = number_or_null(options_.plan.link_gbytes);
  finish(row);
  if (!options_.trace.empty()) MK_RETURN_IF_ERROR(trace(row));
  return row;
}

Status OpMeasurement::begin() {
  MK_RETURN_IF_ERROR(use_gpu(options_.device));
  MK_RETURN_IF_ERROR(take_share());
  auto stream = GpuStream::create();
  if (!stream.ok()) return stream.status();
  stream_ = std::move(*stream);
  return {};
}

/// The part of a shared GPU that the plan may use.
Status OpMeasurement::take_share() {
  if (options_.share == 0 || options_.plan.sms != 0) return {};
  auto machine = kernels::hopper_machine("mkbench op");
  if (!machine.ok()) return machine.status();
  options_.plan.sms = share_of_gpu(machine->sms, options_.share);
  if (options_.plan.sms > 0) return {};
  return {StatusCode::kInvalidArgument, "share = " + std::to_string(options_.share) + ", but this GPU has " +
                                            std::to_string(machine->sms) + " multiprocessors"};
}

Status OpMeasurement::fill_all() {
  for (int set = 0; set < sets(); ++set) MK_RETURN_IF_ERROR(fill(set, iteration_++));
  return stream_.synchronize();
}

/// Launches one at a time, each from a barrier until the stream is done, as no graph has been made yet.
Status OpMeasurement::first_launches(Row& row) {
  MK_RETURN_IF_ERROR(fill_all());
  const Activity awake = group_.keep_active();
  std::vector<double> slowest;
  while (slowest.size() <= kLaterLaunches) {
    for (int set = 0; set < sets(); ++set) {
      MK_RETURN_IF_ERROR(group_.barrier());
      const auto begin = std::chrono::steady_clock::now();
      MK_RETURN_IF_ERROR(enqueue(set, options_.executor));
      const Status done = stream_.synchronize();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
      MK_RETURN_IF_ERROR(operation().status());
      MK_RETURN_IF_ERROR(done);
      auto all = from_all(took.count());
      if (!all.ok()) return all.status();
      slowest.push_back(*std::max_element(all->begin(), all->end()));
    }
  }
  row.first_ms = slowest.front();
  row.single_ms = median({slowest.begin() + 1, slowest.end()});
  MK_RETURN_IF_ERROR(verify(row));
  MK_RETURN_IF_ERROR(capture(ours_, [&](int set) { return enqueue(set, options_.executor); }));
  return capture_baselines();
}

Status OpMeasurement::capture(Side& side, const std::function<Status(int)>& queue) {
  for (int set = 0; set < sets(); ++set) {
    auto graph = GpuGraph::capture(stream_, [&] { return queue(set); });
    if (!graph.ok()) return graph.status();
    side.graphs.push_back(std::move(*graph));
  }
  return {};
}

template <typename T>
Result<std::vector<T>> OpMeasurement::from_all(const T& mine) {
  auto all = group_.exchange(std::as_bytes(std::span(&mine, 1)));
  if (!all.ok()) return all.status();
  std::vector<T> values(all->size());
  for (std::size_t r = 0; r < all->size(); ++r) std::memcpy(&values[r], (*all)[r].data(), sizeof(T));
  return values;
}

/// The first launch is not timed: it brings the ranks together, which leave the barrier at their own pace.
Status OpMeasurement::time(Side& side) {
  MK_RETURN_IF_ERROR(group_.barrier());
  const int last = per_round();
  MK_RETURN_IF_ERROR(side.graphs[last].launch(stream_));
  auto times = stream_.time(last, [&](int set) { return side.graphs[set].launch(stream_); });
  if (!times.ok()) return times.status();
  std::array<double, kMostPerRound> mine{};
  std::copy(times->begin(), times->end(), mine.begin());
  auto all = from_all(mine);
  if (!all.ok()) return all.status();
  for (int i = 0; i < last; ++i) {
    double slowest = 0;
    for (const auto& theirs : *all) slowest = std::max(slowest, theirs[i]);
    side.milliseconds.push_back(slowest);
  }
  return {};
}

Status OpMeasurement::verify(Row& row) {
  for (int set = 0; set < sets(); ++set) {
    auto mine = judge(set);
    if (!mine.ok()) return mine.status();
    auto all = from_all(*mine);
    if (!all.ok()) return all.status();
    for (const Outcome& theirs : *all) {
      row.elements += theirs.check.elements;
      row.wrong += theirs.check.wrong;
      if (theirs.digest != (*all)[0].digest) row.wrong += theirs.check.elements;  // the ranks disagree
      if (!(theirs.check.relative_error <= row.max_rel_err)) row.max_rel_err = theirs.check.relative_error;
    }
  }
  return {};
}

Status OpMeasurement::round(Row& row) {
  MK_RETURN_IF_ERROR(fill_all());
  const Activity awake = group_.keep_active();  // replays that put cannot wake the daemon
  const Status timed = time(ours_);
  MK_RETURN_IF_ERROR(operation().status());  // says who was waited for; `timed` only that the group is over
  MK_RETURN_IF_ERROR(timed);
  MK_RETURN_IF_ERROR(time_baselines());
  return verify(row);
}

/// One more launch, not timed, verified: the last one of a row of them that brings the ranks together; the
/// first one makes room for the timeline.
Status OpMeasurement::trace(Row& row) {
  MK_RETURN_IF_ERROR(fill_all());
  MK_RETURN_IF_ERROR(group_.barrier());
  const Activity awake = group_.keep_active();  // replays that put cannot wake the daemon
  Trace timeline;
  ExecutorOptions traced = options_.executor;
  traced.trace = &timeline;
  MK_RETURN_IF_ERROR(enqueue(0, traced));
  for (int set = 1; set < sets(); ++set) MK_RETURN_IF_ERROR(ours_.graphs[set].launch(stream_));
  MK_RETURN_IF_ERROR(enqueue(0, traced));
  MK_RETURN_IF_ERROR(stream_.synchronize());
  MK_RETURN_IF_ERROR(operation().status());
  if (timeline.lost() > 0)
    std::cerr << "mkbench: " << timeline.lost() << " events did not fit the timeline\n";
  MK_RETURN_IF_ERROR(verify(row));
  return write_timeline(group_, timeline.take(), options_.trace);
}

}  // namespace mkernel::bench
