// Memory comes and goes. "Unregistered" means that nothing writes there any more, and nothing reads: the
// answer comes when no put and no transport holds the region, or with an error once the channels that could
// use it are closed.
#include <algorithm>
#include <string>
#include <utility>

#include "daemon/dataplane/group_mark.h"
#include "daemon/dataplane/rail.h"

namespace mkernel::dataplane {
namespace {

// Whether a transport holds a region takes a look at all its puts in flight: that may cost the proxy one part
// in so many of its time, however many regions are waited for.
constexpr int kLookShare = 32;
constexpr std::chrono::microseconds kLeastPause{50};

}  // namespace

/// Steps: wait for the puts that were written before, refuse new ones, wait until nobody holds the region.
/// When the time is up, or the group has failed and its puts never end, its channels are closed instead.
struct Rail::Release {
  GroupKey key;
  std::uint64_t serial = 0;
  std::uint32_t index = 0;
  base::TimePoint deadline;
  Limit limit{0};
  std::shared_ptr<GroupMark> mark;               ///< null: do not wait for puts
  std::shared_ptr<const memory::Region> region;  ///< once new puts are refused
  base::TimePoint next_look{};
  bool cutting = false;
  Status cut_why;
  std::function<void(Status)> done;
};

void Rail::set_region(const GroupKey& key, std::uint32_t index,
                      std::shared_ptr<const memory::Region> region) {
  Group* group = groups_.find(key);
  if (group == nullptr || index >= group->regions.size()) return;
  if (retire_region(*group, index)) {
    auto release = std::make_shared<Release>();
    release->key = key;
    release->serial = group->serial;
    release->index = index;
    release->deadline = base::TimePoint::max();
    release->region = group->retired.back();
    release->done = [](const Status&) {};
    add_release(std::move(release));
  }
  group->remote_bytes_of(group->port->rank, index) = region->bytes;  // puts to itself
  group->regions[index] = std::move(region);
}

void Rail::clear_region(const GroupKey& key, std::uint32_t index, Limit limit,
                        std::function<void(Status)> done) {
  const Group* group = groups_.find(key);
  const bool closing = groups_.closing(key);
  if (!closing && (group == nullptr || index >= group->regions.size())) return done({});
  auto release = std::make_shared<Release>();
  release->key = key;
  release->index = index;
  release->deadline = base::deadline_after(limit);
  release->limit = limit;
  release->done = std::move(done);
  if (group != nullptr) {
    release->serial = group->serial;
    release->mark = std::make_shared<GroupMark>(*group);
  }
  add_release(std::move(release));
}

void Rail::add_release(std::shared_ptr<Release> release) {
  ++releases_;
  chores_.push_back([this, release](base::WorkBudget& budget, base::TimePoint now) {
    const Progress progress = advance_release(*release, budget, now);
    if (progress == Progress::kDone) --releases_;
    return progress;
  });
}

Rail::Progress Rail::advance_release(Release& release, base::WorkBudget& budget, base::TimePoint now) {
  Group* const group = groups_.find(release.key, release.serial);
  if (group == nullptr) {  // it lets go of its memory as a whole
    if (groups_.closing(release.key)) return Progress::kWaiting;
    release.done({});
    return Progress::kDone;
  }
  if (release.cutting) return cut_release(release, *group, budget);
  const bool late = now >= release.deadline;
  if (release.region == nullptr) {
    if (!late && release.mark != nullptr && !release.mark->passed(*group, budget)) return Progress::kWaiting;
    if (!retire_region(*group, release.index)) {
      release.done({});
      return Progress::kDone;
    }
    release.region = group->retired.back();
  }
  if (!late && now < release.next_look) return Progress::kWaiting;
  if (!in_use(*release.region)) {
    let_go(*group, *release.region);
    release.done({});
    return Progress::kDone;
  }
  release.cutting = late || group->failed;
  if (late) {
    release.cut_why = {StatusCode::kDeadlineExceeded,
                       "group " + group->port->name + ": region " + std::to_string(release.index) +
                           " of rank " + std::to_string(group->port->rank) +
                           " was unregistered and is still in use after " +
                           std::to_string(release.limit.count()) +
                           " ms: the channels of the group are closed, nothing is written there any more"};
  }
  const auto took = base::Clock::now() - now;
  release.next_look = now + std::max<base::Clock::duration>(kLeastPause, releases_ * kLookShare * took);
  return release.cutting ? Progress::kWorked : Progress::kWaiting;
}

/// The group cannot go on without its channels: it fails.
Rail::Progress Rail::cut_release(Release& release, Group& group, base::WorkBudget& budget) {
  if (!release.cut_why.ok()) {
    failures_.note(group, static_cast<std::int32_t>(group.port->rank), release.cut_why);
  }
  drop_pending(group);
  end_copies_of(*release.region);
  if (!close_channels(tools_, group, budget)) return Progress::kWorked;
  let_go(group, *release.region);
  release.done(release.cut_why);
  return Progress::kDone;
}

/// Refuses new puts on the region; the reference stays until nobody can be in the middle of using it. False
/// when there is none.
bool Rail::retire_region(Group& group, std::uint32_t index) {
  if (group.regions[index] == nullptr) return false;
  group.remote_bytes_of(group.port->rank, index) = 0;
  transport_.retire(*group.regions[index]);
  group.retired.push_back(std::exchange(group.regions[index], nullptr));
  return true;
}

bool Rail::in_use(const memory::Region& region) const {
  const auto uses = [&region](const auto& entry) {
    const Session& session = *entry.second;
    const auto begin = session.puts.begin();
    return session.copy.uses(region) ||
           std::any_of(begin + session.first, begin + session.count,
                       [&region](const transport::Put& put) { return put.source == &region; });
  };
  return std::any_of(sessions_.begin(), sessions_.end(), uses) || transport_.holds(region);
}

void Rail::end_copies_of(const memory::Region& region) {
  for (const auto& [id, session] : sessions_) {
    if (session->copy.uses(region)) local_.target_unregistered(session->copy);
  }
}

void Rail::let_go(Group& group, const memory::Region& region) {
  transport_.forget(region);
  std::erase_if(group.retired, [&region](const auto& held) { return held.get() == &region; });
}

}  // namespace mkernel::dataplane
