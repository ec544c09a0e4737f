#include "tools/mkbench/timeline.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

namespace mkernel::bench {
namespace {

/// Every rank's text, by rank; more than fits one exchange goes in several.
Result<std::vector<std::string>> gather_texts(Group& group, const std::string& mine) {
  const auto bytes = static_cast<std::uint64_t>(mine.size());
  auto sizes = group.exchange(std::as_bytes(std::span(&bytes, 1)));
  if (!sizes.ok()) return sizes.status();
  std::uint64_t longest = 0;
  for (const auto& size : *sizes) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, size.data(), sizeof theirs);
    longest = std::max(longest, theirs);
  }
  std::vector<std::string> texts(group.world_size());
  for (std::uint64_t at = 0; at < longest; at += kMaxExchangeBytes) {
    const std::string part = at < mine.size() ? mine.substr(at, kMaxExchangeBytes) : std::string();
    auto parts = group.exchange(std::as_bytes(std::span(part)));
    if (!parts.ok()) return parts.status();
    for (std::size_t r = 0; r < texts.size(); ++r)
      texts[r].append(reinterpret_cast<const char*>((*parts)[r].data()), (*parts)[r].size());
  }
  return texts;
}

/// In the trace event format: times in microseconds.
nlohmann::json to_json(const TraceEvent& event, std::uint32_t rank) {
  const bool wait = event.kind == TraceEvent::Kind::kWait;
  nlohmann::json json{{"name", wait ? "wait: " + event.name : event.name},
                      {"cat", wait ? "wait" : "role"},
                      {"ph", "X"},
                      {"ts", static_cast<double>(event.begin_ns) / 1e3},
                      {"dur", static_cast<double>(event.end_ns - event.begin_ns) / 1e3},
                      {"pid", rank},
                      {"tid", event.track}};
  if (event.peer >= 0) json["args"] = {{"rank", event.peer}};
  return json;
}

nlohmann::json name_of(const Group& group) {
  const RankInfo info = group.rank_info(group.rank());
  return {{"name", "process_name"},
          {"ph", "M"},
          {"pid", group.rank()},
          {"args", {{"name", "rank " + std::to_string(group.rank()) + " on " + info.node_name}}}};
}

}  // namespace

Status write_timeline(Group& group, const std::vector<TraceEvent>& mine, const std::string& path) {
  nlohmann::json events = nlohmann::json::array({name_of(group)});
  for (const TraceEvent& event : mine) events.push_back(to_json(event, group.rank()));
  auto texts = gather_texts(group, events.dump());
  if (!texts.ok()) return texts.status();
  if (group.rank() != 0) return {};
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& text : *texts) {
    const auto theirs = nlohmann::json::parse(text, nullptr, false);
    if (!theirs.is_array()) return {StatusCode::kInternal, "a rank's timeline did not come through"};
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  std::ofstream out(path);
  out << nlohmann::json{{"displayTimeUnit", "ns"}, {"traceEvents", all}}.dump() << "\n";
  return out ? Status() : Status(StatusCode::kInternal, "cannot write " + path);
}

}  // namespace mkernel::bench
