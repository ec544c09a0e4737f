// One call on every proxy, one answer back on the control thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "proto/abi/status.h"

namespace mkernel::session {

/// A function to be called `count` > 0 times, from any thread; after the last call `all` runs on the control
/// thread with the first error, or OK. NOTES: copies live on proxy threads and may die there, so `all` must
/// hold nothing but weak references to what belongs to the control thread.
inline std::function<void(Status)> gather(boost::asio::io_context& io, std::size_t count,
                                          std::function<void(Status)> all) {
  struct State {
    std::size_t missing;
    Status first_error;
    std::function<void(Status)> all;
  };
  auto state = std::make_shared<State>(State{count, {}, std::move(all)});
  return [&io, state](Status status) {
    boost::asio::post(io, [state, status = std::move(status)] {
      if (state->first_error.ok()) state->first_error = status;
      if (--state->missing == 0) state->all(state->first_error);
    });
  };
}

}  // namespace mkernel::session
