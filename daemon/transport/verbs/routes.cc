#include "daemon/transport/verbs/routes.h"

#include <algorithm>

namespace mkernel::transport::verbs {
namespace {

/// A route that keeps failing is tried once in so long,
constexpr std::chrono::milliseconds kLongestWait{30000};
/// or, where there is no other,
constexpr std::chrono::milliseconds kLastResort{250};

}  // namespace

Routes::Routes(const Context& context) : context_(context) {
  know_remote(1);
}

void Routes::know_remote(std::uint32_t paths) {
  std::vector<Entry> fresh;
  const auto local_paths = static_cast<std::uint32_t>(context_.paths.size());
  for (std::uint32_t i = 0; i < std::max(local_paths, paths); ++i) {
    const Route route{i % local_paths, i % paths};
    const Entry* known = find(route);
    fresh.push_back(known != nullptr ? *known : Entry{route});
  }
  entries_ = std::move(fresh);
}

Routes::Entry* Routes::find(Route route) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.route == route; });
  return found == entries_.end() ? nullptr : &*found;
}

bool Routes::port_up(const Entry& entry) const {
  return context_.paths[entry.route.local]->state().ok();
}

std::optional<Route> Routes::pick(Time now) const {
  for (const auto due : {&Entry::not_before, &Entry::last_resort}) {
    for (const Entry& entry : entries_) {
      if (entry.*due <= now && port_up(entry)) return entry.route;
    }
  }
  return std::nullopt;
}

std::optional<Route> Routes::better(Route than, Time now) const {
  for (const Entry& entry : entries_) {
    if (entry.route == than) break;
    if (entry.not_before <= now && port_up(entry)) return entry.route;
  }
  return std::nullopt;
}

Time Routes::next(Time now) const {
  Time next = kNever;
  for (const Entry& entry : entries_) {
    if (!port_up(entry)) continue;
    for (const Time due : {entry.not_before, entry.last_resort}) {
      if (due > now) next = std::min(next, due);
    }
  }
  return next;
}

void Routes::failed(Route route, Time now) {
  Entry* const entry = find(route);
  if (entry == nullptr || entry->last_resort > now) return;  // its other links have said so
  entry->wait = entry->wait.count() == 0 ? context_.options.base.reconnect_interval
                                         : std::min(2 * entry->wait, kLongestWait);
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

}  // namespace mkernel::transport::verbs
