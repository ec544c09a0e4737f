// What the parts of one emulated transport share.
#pragma once

#include <string>

#include "daemon/transport/emulated/copier.h"
#include "daemon/transport/emulated/emulated.h"

namespace mkernel::transport::emulated {

/// Owned by the transport; every part lives shorter. One thread.
struct Context {
  EmulatedOptions options;
  FaultCounters faults;
  Copier copier{options.engines};
  TransportSink* sink = nullptr;

  const std::string& node() const { return options.base.identity.node; }
};

}  // namespace mkernel::transport::emulated
