#include "daemon/transport/verbs/arrivals.h"

#include <algorithm>
#include <utility>

namespace mkernel::transport::verbs {
namespace {

constexpr std::chrono::milliseconds kShortestInterval{1};
constexpr std::chrono::milliseconds kLongestInterval{20};

}  // namespace

void Arrivals::add(ChannelId channel, std::uint64_t* word) {
  if (channel >= place_of_.size()) place_of_.resize(channel + 1, kNowhere);
  if (place_of_[channel] != kNowhere) return;
  place_of_[channel] = static_cast<std::uint32_t>(watched_.size());
  watched_.push_back({.word = word, .channel = channel});
  interval_ = kShortestInterval;
}

void Arrivals::remove(ChannelId channel) {
  if (channel >= place_of_.size() || place_of_[channel] == kNowhere) return;
  std::size_t place = place_of_[channel];
  if (place < lately_) {  // the others stay behind those that have grown lately
    swap(place, --lately_);
    place = lately_;
  }
  swap(place, watched_.size() - 1);
  watched_.pop_back();
  place_of_[channel] = kNowhere;
}

void Arrivals::swap(std::size_t one, std::size_t other) {
  std::swap(watched_[one], watched_[other]);
  std::swap(place_of_[watched_[one].channel], place_of_[watched_[other].channel]);
}

/// False when it has not grown. The sink may remove channels, this one as well.
bool Arrivals::report(std::size_t place, TransportSink& sink) {
  Watched& watched = watched_[place];
  const std::uint64_t count = arrival_count(watched.word);
  if (count <= watched.seen) return false;
  watched.seen = count;
  watched.grown = polls_;
  const ChannelId channel = watched.channel;
  if (place >= lately_) swap(place, lately_++);
  sink.arrived(channel, count);
  return true;
}

/// Beside those that have grown lately: those are read already.
std::size_t Arrivals::look_at_all(TransportSink& sink, Time now) {
  next_look_ = now + interval_;
  interval_ = std::min(2 * interval_, kLongestInterval);
  std::size_t news = 0;
  // Who has grown changes places with the first of the others, which was read before.
  for (std::size_t i = lately_; i < watched_.size(); ++i) news += report(i, sink) ? 1 : 0;
  return news;
}

std::size_t Arrivals::look_at_some(TransportSink& sink) {
  std::size_t news = 0;
  for (std::size_t n = std::min(kOthers, watched_.size() - lately_); n > 0 && lately_ < watched_.size();
       --n) {
    turn_ = turn_ + 1 < watched_.size() ? std::max(turn_ + 1, lately_) : lately_;
    news += report(turn_, sink) ? 1 : 0;
  }
  return news;
}

std::size_t Arrivals::poll(TransportSink& sink, Time now) {
  ++polls_;
  std::size_t news = 0;
  for (std::size_t i = 0; i < lately_;) {
    if (report(i, sink)) {
      ++news;
    } else if (polls_ - watched_[i].grown >= kLately) {
      swap(i, --lately_);  // which comes to place i and is read next
      continue;
    }
    ++i;
  }
  news += now >= next_look_ ? look_at_all(sink, now) : look_at_some(sink);
  if (news > 0) interval_ = kShortestInterval;
  return news;
}

}  // namespace mkernel::transport::verbs
