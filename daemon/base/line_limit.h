// How many lines of the log others may cause.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "daemon/base/token_bucket.h"
#include "proto/base/mutex.h"

namespace mkernel::base {

/// A limit of lines per second, for each source (a user, a host) and for all of them, with ten seconds' worth
/// at once. What is above it is left out and counted. Thread-safe.
class LineLimit {
 public:
  using TimePoint = TokenBucket::TimePoint;
  struct Rates {
    double each = 20, all = 100;
  };
  struct LeftOut {
    std::uint64_t source = 0, lines = 0;
  };

  explicit LineLimit(Rates rates, TimePoint now = std::chrono::steady_clock::now())
      : rates_(rates), all_(rates.all, now) {}

  /// True: the source may write a line. False: the line is left out, and counted.
  bool admit(std::uint64_t source, TimePoint now = std::chrono::steady_clock::now()) {
    const MutexLock lock(mutex_);
    Source& found = sources_.try_emplace(source, Source{TokenBucket(rates_.each, now), 0}).first->second;
    if (found.bucket.wait(now).count() != 0 || all_.wait(now).count() != 0) {
      ++found.left_out;
      ++left_out_total_;
      return false;
    }
    found.bucket.spend(1, now);
    all_.spend(1, now);
    return true;
  }

  /// Whose lines were left out since the last call, and how many. Forgets sources that were quiet.
  std::vector<LeftOut> take_left_out(TimePoint now = std::chrono::steady_clock::now()) {
    const MutexLock lock(mutex_);
    std::vector<LeftOut> seen;
    for (auto entry = sources_.begin(); entry != sources_.end();) {
      Source& source = entry->second;
      if (source.left_out != 0) seen.push_back({entry->first, source.left_out});
      source.left_out = 0;
      entry = source.bucket.share(now) >= 1 ? sources_.erase(entry) : std::next(entry);
    }
    return seen;
  }

  /// Since the start.
  std::uint64_t left_out_total() const {
    const MutexLock lock(mutex_);
    return left_out_total_;
  }

 private:
  struct Source {
    TokenBucket bucket;
    std::uint64_t left_out = 0;
  };

  const Rates rates_;
  mutable Mutex mutex_;
  TokenBucket all_ MK_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Source> sources_ MK_GUARDED_BY(mutex_);
  std::uint64_t left_out_total_ MK_GUARDED_BY(mutex_) = 0;
};

}  // namespace mkernel::base
