// The loop of the control thread: runs handlers, and measures each of them.
#pragma once

#include <boost/asio/io_context.hpp>

#include "daemon/base/slice_meter.h"

namespace mkernel::app {

/// Runs the handlers of `io` on the calling thread until it is stopped or has no work left. Each is a slice
/// of `meter`; the time in which the thread waits for the next one is none.
void run_handlers(boost::asio::io_context& io, base::SliceMeter& meter);

}  // namespace mkernel::app
