// Which process a handle belongs to. A child that was forked has copies of its parent's handles, but neither
// its threads nor the right to speak on its socket: it must leave all of that alone.
#pragma once

#include <cstdint>
#include <memory>

#include "proto/abi/status.h"

namespace mkernel::client {

/// A number of the calling process: another one in every process that was forked. Any thread; costs a load.
std::uint64_t process_token();

/// The process that made an object, which holds one of these. Any thread.
class Home {
 public:
  /// Whether the caller is that process.
  bool here() const { return token_ == process_token(); }
  /// OK, or kFailedPrecondition: the caller is a child of it.
  Status check() const;

 private:
  const std::uint64_t token_ = process_token();
};

/// Owns `made` as any shared_ptr does, but in a child that was forked: there it is left as it is. Its
/// destructor would join threads that the child does not have, and give back what is the parent's.
template <typename T>
std::shared_ptr<T> shared_at_home(T* made) {
  return {made, [home = Home()](T* gone) {
            if (home.here()) delete gone;
          }};
}

/// Ends what a handle owns, or in a child leaves it as it is.
template <typename T>
void end_at_home(std::unique_ptr<T>& state) {
  if (state != nullptr && !state->home().here()) (void)state.release();
  state.reset();
}

}  // namespace mkernel::client
