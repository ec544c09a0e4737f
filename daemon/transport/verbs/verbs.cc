#include "daemon/transport/verbs/verbs.h"

#include <utility>

#include "daemon/transport/verbs/transport.h"

namespace mkernel::transport {

Result<std::unique_ptr<Transport>> make_verbs(const VerbsOptions& options) {
  auto made = verbs::VerbsTransport::make(options);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Transport>(std::move(*made));
}

}  // namespace mkernel::transport
