// Memory as one device sees it: regions registered for one purpose each, in pieces, and given back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/memory/region.h"
#include "daemon/transport/rdma/objects.h"
#include "daemon/transport/rdma/registrar.h"
#include "proto/base/mutex.h"

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

/// A region of more bytes is registered on the registrar's thread: below that, asking another thread takes
/// longer.
inline constexpr std::uint64_t kAtOnceBytes = std::uint64_t{1} << 20;

/// What registrations are made of, and for. All of it outlives every registration.
struct Domain {
  const VerbsLibrary* verbs = nullptr;
  std::shared_ptr<ibv_pd> pd;
  std::string device;                       ///< for texts
  std::uint64_t chunk_bytes = kChunkBytes;  ///< a power of two, a page or more
  Registrar* registrar = nullptr;           ///< null: everything is done at once
};

/// One thread, the registrar's owner. A region is registered when it is first asked for, not for every put.
///
/// Large regions that a shared_ptr owns are registered and given back on the registrar's thread, which keeps
/// them alive for as long as that takes.
class Registrations {
 public:
  explicit Registrations(Domain domain);
  /// When it returns no device reads or writes by their means. May take long.
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  /// To read from: made at the first call, kept until forget(). Null: it is being made; ask again when
  /// Registrar::run() has called something. An error is told once, the next call tries again.
  Result<const Registration*> source(const memory::Region& region);
  /// For peers to write to, with relaxed ordering where the device offers it. Null and errors as above.
  /// Counted when it is there: goes with the last release.
  Result<const Registration*> target(const memory::Region& region);
  /// Whoever was given the key uses it no more. The registration goes, and leaving() says when it has gone.
  void release(const memory::Region& region);
  /// The same, and nothing can be written by its means when this returns, whoever was given the key: the
  /// price is that it may take long.
  void release_now(const memory::Region& region);
  /// What was released is still registered.
  bool leaving(const memory::Region& region) const;
  bool any_leaving() const;
  /// What target() made; null when it is not registered.
  const Registration* granted(const memory::Region& region) const;
  /// Arrival words for peers to write to, without relaxed ordering: the count must not overtake its data.
  /// Counted by where they begin. At once, as they are few.
  Result<std::uint32_t> words(std::span<std::byte> words);
  void release_words(std::span<std::byte> words);

  /// Nothing of the region stays registered, whoever counts on it. Peers cannot write to it when this
  /// returns.
  void forget(const memory::Region& region);

  std::uint64_t chunk_bytes() const { return domain_.chunk_bytes; }
  /// Changes whenever a registration goes: pointers that were kept may then dangle.
  std::uint64_t generation() const { return generation_; }

 private:
  /// One registration, from the wish to the end. The two threads hand it to each other; `dropped` is for both
  /// at a time, and so is `made` while it is given back.
  struct Job {
    enum class State { kMaking, kReady, kGone };
    Domain domain;  ///< first: goes last
    std::shared_ptr<const memory::Region> owner;
    int access = 0;
    State state = State::kMaking;
    Registration made;
    Status status;
    std::atomic<bool> dropped{false};  ///< nobody waits for it any more
    Mutex giving_back;                 ///< held by whoever empties `made`
  };
  using Jobs = std::unordered_map<const memory::Region*, std::shared_ptr<Job>>;
  struct Counted {
    std::shared_ptr<Job> job;
    std::uint32_t uses = 0;
  };
  struct Words {
    Object<ibv_mr> region;
    std::uint32_t uses = 0;
  };

  static void make(Job& job, const memory::Region& region);
  static void leave(const std::shared_ptr<Job>& job);
  std::shared_ptr<Job> begin(const memory::Region& region, int access) const;
  void drop(const std::shared_ptr<Job>& job);

  const Domain domain_;
  std::uint64_t generation_ = 0;
  Jobs sources_;
  std::unordered_map<const memory::Region*, Counted> targets_;
  std::unordered_map<const std::byte*, Words> words_;
  std::vector<std::pair<const memory::Region*, std::shared_ptr<Job>>> leaving_;  ///< targets
};

/// The source of a channel's last put, so that a stream of puts looks it up once. Whoever keeps one forgets
/// it when the Registrations change or go.
struct LastSource {
  const memory::Region* region = nullptr;
  std::uint64_t generation = 0;
  const Registration* registration = nullptr;

  /// Null: it was another region, or a registration has gone since.
  const Registration* find(const Registrations& of, const memory::Region& wanted) const {
    return region == &wanted && generation == of.generation() ? registration : nullptr;
  }
  /// Of another region than the last: null, and nothing kept, while it is being registered.
  Result<const Registration*> look_up(Registrations& of, const memory::Region& wanted) {
    const auto made = of.source(wanted);
    if (made.ok() && made.value() != nullptr) *this = {&wanted, of.generation(), made.value()};
    return made;
  }
};

}  // namespace mkernel::transport::rdma
