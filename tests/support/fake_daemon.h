// A daemon in a thread, for tests of the client: speaks the session protocol on a Unix socket, forms groups
// of the ranks that connect to it (all in this process or not), delivers puts by memcpy. It checks nothing
// that the client is not tested for, and can be told to misbehave.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "proto/abi/messages.h"
#include "proto/abi/region_map.h"
#include "proto/abi/status.h"
#include "proto/abi/work_request.h"
#include "proto/ipc/fd.h"
#include "proto/ipc/packet.h"
#include "proto/ipc/write_hold.h"

namespace mkernel::test {

struct FakeDaemonOptions {
  std::vector<std::string> nodes;         ///< node of every rank; ranks beyond it live on "node0"
  std::uint32_t rails = 0;                ///< abi::GroupSegment::rails of every rank
  std::uint32_t version = abi::kVersion;  ///< stamped on every reply
  std::uint32_t rings = 2;
  std::uint32_t log2_slots = 4;  ///< few, so that tests see full rings
};

class FakeDaemon {
 public:
  explicit FakeDaemon(FakeDaemonOptions options = {});
  ~FakeDaemon();

  const std::string& socket() const { return path_; }

  /// Closes every socket at once, as the kernel does for a daemon that was killed.
  void die();
  /// Raises the abort word of every rank of every group.
  void fail_groups(std::int32_t culprit, const std::string& node, const Status& why);
  /// Tells every client that its session is over, then closes.
  void end_sessions(const Status& why);
  /// From now on requests of this type stay without an answer.
  void ignore(abi::MessageType type);
  /// From now on no ring is drained, until start_draining().
  void stop_draining();
  void start_draining();

  struct Look {
    std::size_t sessions = 0, members = 0, regions = 0;
    std::uint64_t puts = 0, doorbells = 0;
    std::vector<std::uint64_t> slots = {};      ///< taken from each ring of all sessions
    std::uint32_t active = 0;                   ///< sum over sessions
    std::uint64_t launches = 0, fallbacks = 0;  ///< likewise
  };
  Look look();

 private:
  struct Region {
    ipc::UniqueFd fd;
    std::shared_ptr<const ipc::WriteHold> hold;
    ipc::Mapping mapping;
    std::uint64_t offset = 0;
    bool shared = false;
    bool sealed = false;     ///< as the daemon seals host memory; GPU memory counts as sealed
    std::uint32_t kind = 0;  ///< as the client said; "GPU memory" is a memfd too, or only named (kIpc)
    std::uint64_t bytes = 0;
    abi::IpcMemory ipc{};
  };
  struct Client;
  struct Group;
  /// One rank of one group.
  struct Member {
    Client* client = nullptr;
    std::uint32_t handle = 0, first_channel = 0;
    std::uint32_t join_sequence = 0;
    ipc::UniqueFd fd;
    ipc::Mapping segment;
    std::map<std::uint32_t, Region> regions;
    std::uint32_t exchange_sequence = 0;  ///< 0: not in an exchange
    std::vector<std::uint8_t> payload;
    abi::GroupSegment* header() const { return segment.at<abi::GroupSegment>(0); }
  };
  struct Group {
    abi::JoinGroup shape{};
    std::map<std::uint32_t, std::unique_ptr<Member>> members;  ///< by rank
    bool whole = false;
  };
  struct Client {
    ipc::UniqueFd socket;
    ipc::Mapping segment;
    std::vector<ipc::UniqueFd> bells;
    std::vector<std::uint64_t> tails;
    std::uint32_t next_channel = 0, next_handle = 1;
    bool gone = false;
    abi::SessionSegment* header() const { return segment.at<abi::SessionSegment>(0); }
  };
  /// Where a handle of a client leads.
  struct Seat {
    Group* group = nullptr;
    std::uint32_t rank = 0;
    Member* member = nullptr;
  };

  void post(std::function<void()> command);
  void serve();
  void run_commands();
  void handle(Client& client);
  void answer(Client& client, const ipc::Packet& packet, const abi::Header& header,
              std::vector<ipc::UniqueFd> fds);
  void hello(Client& client, const abi::Header& header);
  void join(Client& client, const abi::JoinGroup& message);
  void form(Group& group);
  void exchange(Client& client, const abi::Exchange& message);
  void register_region(Client& client, const abi::RegisterRegion& message, std::vector<ipc::UniqueFd> fds);
  Status seal(Region& region);
  Status seal_region(Client& client, const abi::SealRegion& message);
  Region& usable(Member& member, std::uint32_t index);
  void map_region(Client& client, const abi::MapRegion& message);
  void set_entry(Group& group, std::uint32_t rank, std::uint32_t index, std::uint64_t bytes);
  void leave(Client& client, std::uint32_t handle);
  void fail(Group& group, std::int32_t culprit, const std::string& node, const Status& why);
  std::size_t drain(Client& client);
  void deliver(Client& client, const abi::WorkSlot& slot);
  Seat seat(Client& client, std::uint32_t handle);
  std::string node_of(std::uint32_t rank) const;
  template <typename Reply>
  void reply(Client& client, abi::MessageType type, std::uint32_t sequence, Reply message,
             const Status& status, const std::vector<int>& fds = {}) {
    message.header = ipc::header_of<Reply>(type, sequence);
    message.header.version = options_.version;
    message.status = ipc::to_reply(status);
    const std::span<const int> sent = status.ok() ? std::span(fds) : std::span<const int>();
    // A client that is gone cannot be answered; its end of stream is handled when it is read.
    (void)ipc::send_message(client.socket.get(), message, sent);
  }
  void plain(Client& client, abi::MessageType type, std::uint32_t sequence, const Status& status = {});

  const FakeDaemonOptions options_;
  std::string path_;
  ipc::UniqueFd listener_;
  ipc::UniqueFd wake_;
  std::list<std::unique_ptr<Client>> clients_;
  std::map<std::string, Group> groups_;
  ipc::WriteHolds holds_;
  std::vector<std::shared_ptr<const ipc::WriteHold>> kept_;
  std::vector<abi::MessageType> ignored_;
  bool draining_ = true, running_ = true;
  std::uint64_t puts_ = 0, bells_ = 0;
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(abi::kMaxRings);  ///< by ring
  std::mutex mutex_;
  std::deque<std::function<void()>> commands_;
  std::thread thread_;
};

}  // namespace mkernel::test
