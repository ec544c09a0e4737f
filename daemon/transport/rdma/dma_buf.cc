#include "daemon/transport/rdma/dma_buf.h"

#include <cerrno>
#include <cstring>
#include <string>

namespace mkernel::transport::rdma {

Result<bool> takes_dma_bufs(const VerbsLibrary& verbs, ibv_pd* pd) {
  errno = 0;
  ibv_mr* const mr = verbs.reg_dmabuf_mr(pd, 0, 0, 0, -1, 0);
  const int error = errno;
  if (mr != nullptr) verbs.dereg_mr(mr);
  if (error == EBADF) return true;
  if (error == EOPNOTSUPP || error == EPROTONOSUPPORT) return false;
  return Status(StatusCode::kUnavailable, std::string("registering no file: ") + std::strerror(error));
}

}  // namespace mkernel::transport::rdma
