#include "tools/mkbench/timeline.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>

#include "tools/base/output_file.h"

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

/// A thread of the file for a track, and one for each of its warps; none is 0, which means idle there.
std::uint32_t thread_of(const TraceEvent& event) {
  constexpr std::uint32_t kWarps = 64;
  return 1 + event.track * kWarps + static_cast<std::uint32_t>(event.warp + 1);
}

/// In the trace event format: times in microseconds.
nlohmann::json to_json(const TraceEvent& event, std::uint32_t rank) {
  static constexpr const char* kCategory[] = {"role", "wait", "work"};
  const bool wait = event.kind == TraceEvent::Kind::kWait;
  nlohmann::json json{{"name", wait ? "wait: " + event.name : event.name},
                      {"cat", kCategory[static_cast<std::uint32_t>(event.kind)]},
                      {"ph", "X"},
                      {"ts", static_cast<double>(event.begin_ns) / 1e3},
                      {"dur", static_cast<double>(event.end_ns - event.begin_ns) / 1e3},
                      {"pid", rank},
                      {"tid", thread_of(event)}};
  if (event.peer >= 0) json["args"]["rank"] = event.peer;
  if (event.index >= 0) json["args"]["index"] = event.index;
  return json;
}

nlohmann::json name(const char* what, std::uint32_t rank, std::uint32_t thread, const std::string& text) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", text}}}};
}

}  // namespace

nlohmann::json timeline_of(std::uint32_t rank, const std::string& node,
                           const std::vector<TraceEvent>& events) {
  nlohmann::json json =
      nlohmann::json::array({name("process_name", rank, 0, "rank " + std::to_string(rank) + " on " + node)});
  std::map<std::uint32_t, std::string> roles;  // by track
  for (const TraceEvent& event : events) {
    if (event.kind == TraceEvent::Kind::kRole) roles[event.track] = event.name;
  }
  std::map<std::uint32_t, std::string> threads;
  for (const TraceEvent& event : events) {
    std::string text = roles[event.track] + " " + std::to_string(event.track);
    if (event.warp >= 0) text += " warp " + std::to_string(event.warp);
    threads[thread_of(event)] = text;
    json.push_back(to_json(event, rank));
  }
  for (const auto& [thread, text] : threads) json.push_back(name("thread_name", rank, thread, text));
  return json;
}

Status write_timeline(Group& group, const std::vector<TraceEvent>& mine, const std::string& path) {
  const RankInfo info = group.rank_info(group.rank());
  auto texts = gather_texts(group, timeline_of(group.rank(), info.node_name, mine).dump());
  if (!texts.ok()) return texts.status();
  if (group.rank() != 0) return {};
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& text : *texts) {
    const auto theirs = nlohmann::json::parse(text, nullptr, false);
    if (!theirs.is_array()) return {StatusCode::kInternal, "a rank's timeline did not come through"};
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return tools::replace_file(path,
                             nlohmann::json{{"displayTimeUnit", "ns"}, {"traceEvents", all}}.dump() + "\n");
}

}  // namespace mkernel::bench
