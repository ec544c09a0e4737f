// A fake device's port as the verbs transport wants it named.
#pragma once

#include <algorithm>
#include <string>

#include "daemon/transport/verbs/verbs.h"

namespace mkernel::test {

/// The first RoCE v2 GID that is not link-local, as topology would choose.
inline transport::VerbsPort roce_port(const std::string& device, const transport::rdma::VerbsLibrary& verbs) {
  transport::VerbsPort port{.device = device};
  int count = 0;
  ibv_device** const list = verbs.get_device_list(&count);
  for (int i = 0; i < count; ++i) {
    if (device != verbs.get_device_name(list[i])) continue;
    ibv_context* const context = verbs.open_device(list[i]);
    ibv_gid_entry entry{};
    for (std::uint32_t index = 0; verbs.query_gid_ex(context, 1, index, &entry) == 0; ++index) {
      if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || entry.gid.raw[0] == 0xfe) continue;
      port.gid_index = index;
      std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), port.gid.begin());
      break;
    }
    verbs.close_device(context);
  }
  verbs.free_device_list(list);
  return port;
}

}  // namespace mkernel::test
