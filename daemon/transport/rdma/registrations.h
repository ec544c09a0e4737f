// Memory as one device sees it: regions registered for one purpose each, in pieces, and given back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/memory/region.h"
#include "daemon/transport/rdma/objects.h"

namespace mkernel::transport::rdma {

/// One piece of a registered region: bytes [k * chunk_bytes, (k + 1) * chunk_bytes) of it.
struct Chunk {
  std::uint64_t address = 0;  ///< what a request names to reach the first byte
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
};

struct Registration {
  std::vector<Object<ibv_mr>> regions;
  std::vector<Chunk> chunks;
};

/// Huge registrations are made in pieces of this size: some devices have a limit, and none likes them.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 30;

/// One thread. Registering takes time (pages are pinned): it happens at the first put of a region, not at
/// every one.
class Registrations {
 public:
  /// `pd` and the library outlive this. `chunk_bytes`: a power of two, a page or more.
  Registrations(const VerbsLibrary& verbs, ibv_pd* pd, std::string device,
                std::uint64_t chunk_bytes = kChunkBytes);

  /// To read from: made at the first call, kept until forget().
  Result<const Registration*> source(const memory::Region& region);
  /// For peers to write to, with relaxed ordering where the device offers it. Counted: goes with the last
  /// release().
  Result<const Registration*> target(const memory::Region& region);
  void release(const memory::Region& region);
  /// What target() made; null when it is not registered.
  const Registration* granted(const memory::Region& region) const;
  /// Arrival words for peers to write to, without relaxed ordering: the count must not overtake its data.
  /// Counted by where they begin.
  Result<std::uint32_t> words(std::span<std::byte> words);
  void release_words(std::span<std::byte> words);

  /// Nothing of the region stays registered, whoever counts on it.
  void forget(const memory::Region& region);

  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  /// Changes whenever a registration goes: pointers that were kept may then dangle.
  std::uint64_t generation() const { return generation_; }

 private:
  struct Counted {
    Registration registration;
    std::uint32_t uses = 0;
  };

  Result<Registration> register_region(const memory::Region& region, int access) const;
  Result<Object<ibv_mr>> register_host(std::byte* at, std::uint64_t bytes, int access) const;
  Result<Object<ibv_mr>> register_dma_buf(const memory::Region& region, std::uint64_t at, std::uint64_t bytes,
                                          int access) const;

  const VerbsLibrary& verbs_;
  ibv_pd* const pd_;
  const std::string device_;
  const std::uint64_t chunk_bytes_;
  std::uint64_t generation_ = 0;
  std::unordered_map<const memory::Region*, Registration> sources_;
  std::unordered_map<const memory::Region*, Counted> targets_;
  std::unordered_map<const std::byte*, Counted> words_;
};

}  // namespace mkernel::transport::rdma
