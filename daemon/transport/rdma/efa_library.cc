#include "daemon/transport/rdma/efa_library.h"

#include <cstddef>

#include "daemon/transport/rdma/shared_object.h"

namespace mkernel::transport::rdma {
namespace {

// The layouts against the installed header, member by member as far as it has them.

template <typename Theirs>
consteval bool same_qp_init() {
  if (offsetof(EfaQpInit, driver_qp_type) != offsetof(Theirs, driver_qp_type)) return false;
  if constexpr (requires(Theirs init) {
                  init.flags;
                  init.sl;
                }) {
    return offsetof(EfaQpInit, flags) == offsetof(Theirs, flags) &&
           offsetof(EfaQpInit, service_level) == offsetof(Theirs, sl);
  } else {
    return offsetof(EfaQpInit, flags) == offsetof(Theirs, reserved) && sizeof(EfaQpInit) == sizeof(Theirs);
  }
}

static_assert(same_qp_init<efadv_qp_init_attr>());
static_assert(sizeof(EfaQpInit) == 16 && sizeof(EfaSqDepth) == 24);
static_assert(std::uint32_t{kEfaRdmaRead} == std::uint32_t{EFADV_DEVICE_ATTR_CAPS_RDMA_READ} &&
              std::uint32_t{kEfaRnrRetry} == std::uint32_t{EFADV_DEVICE_ATTR_CAPS_RNR_RETRY});

}  // namespace

Result<EfaLibrary> open_efa_library(const std::string& name) {
  auto object =
      SharedObject::open(name, "ibverbs-providers (Debian, Ubuntu), libibverbs (RHEL) or the EFA installer");
  if (!object.ok()) return object.status();
  EfaLibrary efa;
  object->find(efa.query_device, "efadv_query_device", "EFA_1.1");
  object->find(efa.create_qp, "efadv_create_qp_ex", "EFA_1.1");
  object->find_optional(efa.max_sq_depth, "efadv_get_max_sq_depth", "EFA_1.5");
  MK_RETURN_IF_ERROR(object->complete("rdma-core 26"));
  return efa;
}

}  // namespace mkernel::transport::rdma
