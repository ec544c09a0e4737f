// Verbs transports for NullPair.
#pragma once

#include <string>

#include "daemon/transport/verbs/verbs.h"
#include "tests/support/null_pair.h"
#include "tests/support/verbs_port.h"

namespace mkernel::test {

inline NullKind null_verbs() {
  return {[](nic::Fabric& fabric, const transport::TransportOptions& base) {
    const std::string& host = base.identity.node;
    fabric.add_device(host, {.name = "nic-" + host, .null_queues = true});
    transport::VerbsOptions options;
    options.base = base;
    options.verbs = fabric.verbs(host);
    options.ports = {roce_port("nic-" + host, options.verbs)};
    return transport::make_verbs(options).value();
  }};
}

}  // namespace mkernel::test
