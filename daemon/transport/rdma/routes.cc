#include "daemon/transport/rdma/routes.h"

#include <algorithm>
#include <utility>

namespace mkernel::transport::rdma {
namespace {

/// A route that keeps failing is tried once in so long,
constexpr std::chrono::milliseconds kLongestWait{30000};
/// or, where there is no other,
constexpr std::chrono::milliseconds kLastResort{250};

}  // namespace

std::uint32_t paths_in(const std::string& endpoint) {
  const auto commas = std::count(endpoint.begin(), endpoint.end(), ',');
  return static_cast<std::uint32_t>(std::min<std::ptrdiff_t>(commas + 1, kMaxPaths));
}

Routes::Routes(Options options) : options_(std::move(options)) {
  know_remote(1);
}

void Routes::know_remote(std::uint32_t paths) {
  std::vector<Entry> fresh;
  const auto add = [&](Route route) {
    const bool listed =
        std::any_of(fresh.begin(), fresh.end(), [&](const Entry& entry) { return entry.route == route; });
    if (listed) return;
    const Entry* known = find(route);
    fresh.push_back(known != nullptr ? *known : Entry{route});
  };
  const std::uint32_t local_paths = options_.local_paths;
  for (std::uint32_t i = 0; i < std::max(local_paths, paths); ++i) add({i % local_paths, i % paths});
  for (std::uint32_t local = 0; options_.every_pair && local < local_paths; ++local) {
    for (std::uint32_t remote = 0; remote < paths; ++remote) add({local, remote});
  }
  entries_ = std::move(fresh);
}

Routes::Entry* Routes::find(Route route) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.route == route; });
  return found == entries_.end() ? nullptr : &*found;
}

std::optional<Route> Routes::pick(Time now) const {
  for (const auto due : {&Entry::not_before, &Entry::last_resort}) {
    for (const Entry& entry : entries_) {
      if (entry.*due <= now && up(entry)) return entry.route;
    }
  }
  return std::nullopt;
}

std::optional<Route> Routes::better(Route than, Time now) const {
  for (const Entry& entry : entries_) {
    if (entry.route == than) break;
    if (entry.not_before <= now && up(entry)) return entry.route;
  }
  return std::nullopt;
}

Time Routes::next(Time now) const {
  Time next = kNever;
  for (const Entry& entry : entries_) {
    if (!up(entry)) continue;
    for (const Time due : {entry.not_before, entry.last_resort}) {
      if (due > now) next = std::min(next, due);
    }
  }
  return next;
}

void Routes::failed(Route route, Time now) {
  Entry* const entry = find(route);
  if (entry == nullptr || entry->last_resort > now) return;  // its other links have said so
  entry->wait = entry->wait.count() == 0 ? options_.first_wait : std::min(2 * entry->wait, kLongestWait);
  entry->not_before = now + entry->wait;
  entry->last_resort = now + std::min(entry->wait, kLastResort);
}

void Routes::answers(Route route, Time now) {
  if (Entry* const entry = find(route)) entry->not_before = entry->last_resort = now;
}

void Routes::carries(Route route) {
  if (Entry* const entry = find(route)) *entry = {route};
}

void Routes::look_again(std::uint32_t local) {
  for (Entry& entry : entries_) {
    if (entry.route.local == local) entry = {entry.route};
  }
}

}  // namespace mkernel::transport::rdma
