// The sending end: asks the other one for what it needs, and measures.
#include "tools/mkbench/fabric.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <thread>

#include "tools/mkbench/fabric_end.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kRounds = 3;
constexpr std::chrono::seconds kStandstill{30};

/// One size of put, from this end to the other.
class Line {
 public:
  static Result<std::unique_ptr<Line>> make(Pipe& pipe, const MakeTransport& make, std::uint32_t bytes) {
    const Layout layout = layout_for(bytes);
    auto end = End::make(make, pipe, layout, true);
    if (!end.ok()) return end.status();
    std::unique_ptr<Line> line(new Line(pipe, std::move(*end), layout));
    auto opened = line->ask({{"do", "open"}, {"endpoint", line->end_->endpoint()}, {"bytes", bytes}});
    if (!opened.ok()) return opened.status();
    MK_RETURN_IF_ERROR(line->end_->connect(opened->value("endpoint", "")));
    MK_RETURN_IF_ERROR(line->wait_for([&] { return line->end_->connected(); }));
    return line;
  }

  Status latency(std::chrono::seconds limit, double& p50_us) {
    return sample(limit, p50_us, 1, [this] { return end_->completed_count() >= end_->submitted(); });
  }

  /// The other end answers each put; half of the time until the answer is here.
  Status half_round_trip(std::chrono::seconds limit, double& p50_us) {
    MK_RETURN_IF_ERROR(ask({{"do", "answer"}, {"on", true}}).status());
    const std::uint64_t before = end_->submitted() - end_->arrived_count();
    MK_RETURN_IF_ERROR(sample(
        limit, p50_us, 0.5, [this, before] { return end_->arrived_count() + before >= end_->submitted(); }));
    MK_RETURN_IF_ERROR(wait_for([this] { return end_->completed_count() >= end_->submitted(); }));
    return ask({{"do", "answer"}, {"on", false}}).status();
  }

  Status round(std::chrono::duration<double> length, double& seconds) {
    end_->fill(++round_);
    const auto begin = Clock::now();
    const std::uint64_t first = end_->submitted();
    // Every slot is sent at least once, so that verification covers the whole region.
    while (end_->submitted() < first + layout_.slots || Clock::now() - begin < length) {
      while (end_->submitted() - end_->completed_count() < layout_.slots && end_->submit_one()) continue;
      MK_RETURN_IF_ERROR(step().status());
    }
    MK_RETURN_IF_ERROR(wait_for([this] { return end_->completed_count() >= end_->submitted(); }));
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    return {};
  }

  /// After round(): nothing is under way.
  Result<bool> verify() {
    auto answer = ask({{"do", "verify"}, {"round", round_}, {"arrived", end_->submitted()}});
    if (!answer.ok()) return answer.status();
    return answer->value("right", false);
  }

  Status close() { return ask({{"do", "close"}}).status(); }
  std::uint64_t submitted() const { return end_->submitted(); }
  std::string transport_name() const { return end_->transport_name(); }

 private:
  Line(Pipe& pipe, std::unique_ptr<End> end, const Layout& layout)
      : pipe_(pipe), end_(std::move(end)), layout_(layout) {}

  Result<std::optional<json>> step() {
    const std::uint64_t before = end_->completed_count() + end_->arrived_count();
    auto word = end_->turn();
    if (end_->completed_count() + end_->arrived_count() > before) last_progress_ = Clock::now();
    if (word.ok() && Clock::now() - last_progress_ > kStandstill)
      return Status(StatusCode::kDeadlineExceeded, "traffic stands still");
    return word;
  }

  template <typename Condition>
  Status wait_for(const Condition& condition) {
    last_progress_ = Clock::now();
    while (!condition()) MK_RETURN_IF_ERROR(step().status());
    return {};
  }

  Result<json> ask(const json& word) {
    MK_RETURN_IF_ERROR(pipe_.send_word(word));
    last_progress_ = Clock::now();
    for (;;) {
      auto answer = step();
      if (!answer.ok()) return answer.status();
      if (!answer->has_value()) continue;
      const std::string error = (*answer)->value("error", "");
      if (!error.empty()) return Status(StatusCode::kUnavailable, "the other end: " + error);
      return **answer;
    }
  }

  template <typename Done>
  Status sample(std::chrono::seconds limit, double& p50_us, double share, const Done& done) {
    std::vector<double> samples;
    const auto end = Clock::now() + limit;
    while (samples.size() < 10'000 && (samples.size() < 10 || Clock::now() < end)) {
      const auto begin = Clock::now();
      MK_RETURN_IF_ERROR(wait_for([this] { return end_->submit_one(); }));
      MK_RETURN_IF_ERROR(wait_for(done));
      samples.push_back(share * std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    p50_us = median(std::move(samples));
    return {};
  }

  Pipe& pipe_;
  std::unique_ptr<End> end_;
  const Layout layout_;
  std::uint64_t round_ = 0;
  Clock::time_point last_progress_ = Clock::now();
};

Result<FabricRow> measure_size(Pipe& pipe, const MakeTransport& make, std::uint32_t bytes,
                               std::chrono::seconds seconds) {
  auto made = Line::make(pipe, make, bytes);
  if (!made.ok()) return made.status();
  Line& line = **made;
  FabricRow row;
  row.transport = line.transport_name();
  row.bytes = bytes;
  const auto share = std::max(seconds / 4, std::chrono::seconds(1));
  MK_RETURN_IF_ERROR(line.latency(share, row.latency_p50_us));
  MK_RETURN_IF_ERROR(line.half_round_trip(share, row.half_round_trip_p50_us));
  const std::uint64_t before = line.submitted();
  double spent = 0;
  row.verified = true;
  for (int i = 0; i < kRounds; ++i) {
    MK_RETURN_IF_ERROR(line.round(std::chrono::duration<double>(seconds) / kRounds, spent));
    const auto right = line.verify();
    if (!right.ok()) return right.status();
    row.verified = right.value() && row.verified;
  }
  row.puts = line.submitted() - before;
  row.gbytes_per_second = static_cast<double>(row.puts) * bytes / spent / 1e9;
  MK_RETURN_IF_ERROR(line.close());
  return row;
}

}  // namespace

Result<std::vector<FabricRow>> measure_fabric(Pipe& pipe, const MakeTransport& make,
                                              const std::vector<std::uint32_t>& sizes,
                                              std::chrono::seconds seconds) {
  std::vector<FabricRow> rows;
  for (const std::uint32_t bytes : sizes) {
    auto row = measure_size(pipe, make, bytes, seconds);
    if (!row.ok()) return row.status().with_context("puts of " + human_bytes(bytes));
    rows.push_back(std::move(*row));
  }
  return rows;
}

Result<std::vector<FabricRow>> measure_fabric(const MakeTransport& make,
                                              const std::vector<std::uint32_t>& sizes,
                                              std::chrono::seconds seconds) {
  auto pipe = Pipe::pair();
  if (!pipe.ok()) return pipe.status();
  std::jthread other([&make, end = std::move(pipe->second)]() mutable {
    // What ends it early ends the measurement too: the pipe closes.
    const Status served = serve_fabric(end, make);
    if (!served.ok()) std::fprintf(stderr, "mkbench: receiving end: %s\n", served.to_string().c_str());
  });
  Pipe here = std::move(pipe->first);  // closed before the thread is waited for
  return measure_fabric(here, make, sizes, seconds);
}

}  // namespace mkernel::bench
