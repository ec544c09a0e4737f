// A stream that is busy for as long as a test wants.
#pragma once

#include <cstdint>

#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::test {

/// While it lives a kernel of one thread keeps `stream` of the current device (null: the legacy default
/// stream) busy, ten seconds at most. The destructor lets it end.
class HeldStream {
 public:
  explicit HeldStream(CUstream_st* stream);
  ~HeldStream();
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  const Status& status() const { return status_; }
  /// Whether it still does.
  bool holds() const;
  /// Lets the kernel end now, and does not wait for it.
  void let_go();

 private:
  CUstream_st* const stream_;
  std::uint32_t* may_end_ = nullptr;  ///< whether the kernel may; pinned
  Status status_;
};

}  // namespace mkernel::test
