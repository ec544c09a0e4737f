// EFA transports for NullPair: the receiving proxy publishes and acknowledges.
#pragma once

#include <string>

#include "daemon/transport/efa/efa.h"
#include "tests/support/null_pair.h"

namespace mkernel::test {

inline NullKind null_efa() {
  return {[](nic::Fabric& fabric, const transport::TransportOptions& base) {
            const std::string& host = base.identity.node;
            fabric.add_device(host, {.name = "efa-" + host, .null_queues = true, .efa = nic::EfaSettings()});
            transport::EfaOptions options;
            options.base = base;
            options.verbs = fabric.verbs(host);
            options.efa = fabric.efa();
            return transport::make_efa(options).value();
          },
          true};
}

}  // namespace mkernel::test
