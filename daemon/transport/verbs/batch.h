// Write requests gathered for one call of ibv_post_send: the pieces of some puts of a channel, and behind
// them its count.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

namespace mkernel::transport::verbs {

/// One thread. Allocates at construction only.
class Batch {
 public:
  explicit Batch(std::uint32_t capacity) : requests_(capacity), pieces_(capacity) {}

  void clear() { used_ = 0; }
  std::uint32_t size() const { return used_; }
  std::uint32_t room() const { return static_cast<std::uint32_t>(requests_.size()) - used_; }
  /// Forgets what was added since size() was `size`.
  void truncate(std::uint32_t size) { used_ = size; }

  /// A write of [address, +length) with `lkey`. There is room: the caller has looked, and nobody does again.
  void write(std::uint64_t address, std::uint32_t lkey, std::uint32_t length, std::uint64_t remote,
             std::uint32_t rkey, bool in_line) {
    ibv_send_wr& request = requests_.data()[used_];
    ibv_sge& piece = pieces_.data()[used_++];
    piece = {address, length, lkey};
    request.sg_list = &piece;
    request.num_sge = length > 0 ? 1 : 0;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = in_line ? IBV_SEND_INLINE : 0;
    request.wr.rdma.remote_addr = remote;
    request.wr.rdma.rkey = rkey;
  }

  /// The requests as a chain, of which the last one is reported. Not empty.
  ibv_send_wr* chain() {
    ibv_send_wr* const first = requests_.data();
    ibv_send_wr* const last = first + used_ - 1;
    for (ibv_send_wr* one = first; one < last; ++one) one->next = one + 1;
    last->next = nullptr;
    last->send_flags |= IBV_SEND_SIGNALED;
    return first;
  }

 private:
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
  std::uint32_t used_ = 0;
};

}  // namespace mkernel::transport::verbs
