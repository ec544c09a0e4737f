#include "tests/support/fake_daemon.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

namespace mkernel::test {
namespace {

template <typename Message>
Message body_of(const ipc::Packet& packet) {
  Message message;
  std::memcpy(&message, packet.data, sizeof(message));
  return message;
}

}  // namespace

FakeDaemon::FakeDaemon(FakeDaemonOptions options) : options_(std::move(options)) {
  char folder[] = "/tmp/mkernel-fake-XXXXXX";
  if (::mkdtemp(folder) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = std::string(folder) + "/socket";
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(path_.begin(), path_.end(), address.sun_path);
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    throw std::runtime_error("fake daemon cannot listen at " + path_);
  }
  wake_ = ipc::create_event().value();
  thread_ = std::thread([this] { serve(); });
}

FakeDaemon::~FakeDaemon() {
  post([this] { running_ = false; });
  thread_.join();
  ::unlink(path_.c_str());
  ::rmdir(path_.substr(0, path_.rfind('/')).c_str());
}

void FakeDaemon::post(std::function<void()> command) {
  std::promise<void> done;
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back([&] {
      command();
      done.set_value();
    });
  }
  const std::uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof(one)) != sizeof(one)) throw std::runtime_error("wake");
  done.get_future().wait();
}

void FakeDaemon::die() {
  post([this] {
    groups_.clear();
    clients_.clear();
    listener_.reset();
  });
}

void FakeDaemon::fail_groups(std::int32_t culprit, const std::string& node, const Status& why) {
  post([&] {
    for (auto& [name, group] : groups_) fail(group, culprit, node, why);
  });
}

void FakeDaemon::end_sessions(const Status& why) {
  post([&] {
    for (auto& client : clients_) {
      abi::SessionEnded message{};
      message.status = ipc::to_reply(why);
      reply(*client, abi::MessageType::kSessionEnded, 0, message, why);
    }
    groups_.clear();
    clients_.clear();
  });
}

void FakeDaemon::ignore(abi::MessageType type) {
  post([&] { ignored_.push_back(type); });
}

void FakeDaemon::stop_draining() {
  post([this] { draining_ = false; });
}

void FakeDaemon::start_draining() {
  post([this] { draining_ = true; });
}

FakeDaemon::Look FakeDaemon::look() {
  Look look;
  post([&] {
    look.sessions = clients_.size();
    for (auto& [name, group] : groups_) {
      look.members += group.members.size();
      for (auto& [rank, member] : group.members) look.regions += member->regions.size();
    }
    for (auto& client : clients_) {
      if (client->segment.bytes() == 0) continue;
      look.active += std::atomic_ref(client->header()->active).load();
      look.launches += std::atomic_ref(client->header()->launches).load();
      look.fallbacks += std::atomic_ref(client->header()->fallbacks).load();
    }
    look.puts = puts_;
    look.doorbells = bells_;
    look.slots = slots_;
  });
  return look;
}

void FakeDaemon::serve() {
  while (running_) {
    std::vector<pollfd> sources{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (auto& client : clients_) {
      sources.push_back({client->socket.get(), POLLIN, 0});
      for (auto& bell : client->bells) sources.push_back({bell.get(), POLLIN, 0});
    }
    // Unlike a proxy it also looks at the rings now and then by itself while a session says that it is
    // active.
    const bool active = std::any_of(clients_.begin(), clients_.end(), [](auto& client) {
      return client->segment.bytes() > 0 && std::atomic_ref(client->header()->active).load() != 0;
    });
    ::poll(sources.data(), sources.size(), active ? 1 : -1);
    run_commands();
    if (listener_.valid()) {
      ipc::UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.valid()) {
        clients_.push_back(std::make_unique<Client>());
        clients_.back()->socket = std::move(socket);
      }
    }
    for (auto& client : clients_) handle(*client);
    for (auto& client : clients_) {
      for (auto& bell : client->bells) {
        std::uint64_t rung = 0;
        if (::read(bell.get(), &rung, sizeof(rung)) == sizeof(rung)) bells_ += rung;
      }
      while (draining_ && drain(*client) > 0) {
      }
    }
    std::erase_if(clients_, [](auto& client) { return client->gone; });
  }
}

void FakeDaemon::run_commands() {
  std::uint64_t rung = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &rung, sizeof(rung));
  while (true) {
    std::function<void()> command;
    {
      const std::lock_guard lock(mutex_);
      if (commands_.empty()) return;
      command = std::move(commands_.front());
      commands_.pop_front();
    }
    command();
  }
}

void FakeDaemon::handle(Client& client) {
  while (!client.gone) {
    ipc::Packet packet;
    const Status received = ipc::receive_packet(client.socket.get(), packet);
    if (received.code() == StatusCode::kNotFound) return;
    if (!received.ok()) {
      for (auto& [name, group] : groups_) {
        std::erase_if(group.members, [&](auto& entry) { return entry.second->client == &client; });
      }
      std::erase_if(groups_, [](auto& entry) { return entry.second.members.empty(); });
      client.gone = true;
      return;
    }
    const auto header = body_of<abi::Header>(packet);
    const auto type = static_cast<abi::MessageType>(header.type);
    if (std::find(ignored_.begin(), ignored_.end(), type) != ignored_.end()) continue;
    std::vector<ipc::UniqueFd> fds = std::move(packet.fds);
    answer(client, packet, header, std::move(fds));
  }
}

void FakeDaemon::answer(Client& client, const ipc::Packet& packet, const abi::Header& header,
                        std::vector<ipc::UniqueFd> fds) {
  using abi::MessageType;
  switch (static_cast<MessageType>(header.type)) {
    case MessageType::kHello: return hello(client, header);
    case MessageType::kJoinGroup: return join(client, body_of<abi::JoinGroup>(packet));
    case MessageType::kLeaveGroup:
      leave(client, body_of<abi::LeaveGroup>(packet).group);
      return plain(client, MessageType::kLeaveGroupReply, header.sequence);
    case MessageType::kRegisterRegion:
      return register_region(client, body_of<abi::RegisterRegion>(packet), std::move(fds));
    case MessageType::kUnregisterRegion: {
      const auto message = body_of<abi::UnregisterRegion>(packet);
      const Seat at = seat(client, message.group);
      const bool found = at.member->regions.erase(message.index) == 1;
      set_entry(*at.group, at.rank, message.index, 0);
      return plain(client, MessageType::kUnregisterRegionReply, header.sequence,
                   found ? Status() : Status(StatusCode::kNotFound, "no such region"));
    }
    case MessageType::kSealRegion:
      return plain(client, MessageType::kSealRegionReply, header.sequence,
                   seal_region(client, body_of<abi::SealRegion>(packet)));
    case MessageType::kMapRegion: return map_region(client, body_of<abi::MapRegion>(packet));
    case MessageType::kExchange: return exchange(client, body_of<abi::Exchange>(packet));
    case MessageType::kFailGroup: {
      const auto message = body_of<abi::FailGroup>(packet);
      const Seat at = seat(client, message.group);
      fail(*at.group, static_cast<std::int32_t>(at.rank), node_of(at.rank),
           {static_cast<StatusCode>(message.code), std::string(ipc::text_of(message.text))});
      return plain(client, MessageType::kFailGroupReply, header.sequence);
    }
    case MessageType::kRejectLaunch: {
      const auto message = body_of<abi::RejectLaunch>(packet);
      const Seat at = seat(client, message.group);
      const std::string text = "rank " + std::to_string(at.rank) + " rejected launch " +
                               std::to_string(message.launch) + ": " +
                               std::string(ipc::text_of(message.text));
      fail(*at.group, static_cast<std::int32_t>(at.rank), node_of(at.rank),
           {static_cast<StatusCode>(message.code), text});
      return plain(client, MessageType::kRejectLaunchReply, header.sequence);
    }
    default: throw std::runtime_error("fake daemon: unknown message");
  }
}

void FakeDaemon::hello(Client& client, const abi::Header& header) {
  abi::SessionSegment layout{};
  abi::HelloReply message{};
  message.segment_bytes = abi::layout_session(layout, options_.rings, options_.log2_slots);
  auto memory = ipc::create_shared_memory("fake session", message.segment_bytes);
  client.segment = ipc::Mapping::map(memory->get(), 0, message.segment_bytes).value();
  std::memcpy(client.segment.data(), &layout, sizeof(layout));
  std::vector<int> fds{memory->get()};
  for (std::uint32_t ring = 0; ring < options_.rings; ++ring) {
    client.bells.push_back(ipc::create_event().value());
    fds.push_back(client.bells.back().get());
  }
  client.tails.assign(options_.rings, 0);
  message.session_id = 7;
  message.ring_count = options_.rings;
  message.max_lanes = abi::kMaxLanes;
  ipc::copy_text(message.node_name, "node0");
  reply(client, abi::MessageType::kHelloReply, header.sequence, message, {}, fds);
}

void FakeDaemon::plain(Client& client, abi::MessageType type, std::uint32_t sequence, const Status& status) {
  reply(client, type, sequence, abi::PlainReply{}, status);
}

}  // namespace mkernel::test
