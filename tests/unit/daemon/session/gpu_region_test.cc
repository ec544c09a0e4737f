// GPU memory as the daemon sees it: an fd that it keeps, accounts, hands to ranks of the same node and lets
// go. No GPU here: /dev/zero stands in for the driver's device, its open files for VMM allocations.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <csignal>

#include "proto/abi/work_request.h"
#include "tests/unit/daemon/session/harness.h"

namespace mkernel::session::testing {
namespace {

constexpr std::uint64_t kBytes = 4 << 20;
constexpr unsigned kStandInMajor = 1;  // /dev/mem, /dev/null, /dev/zero

void stand_in(ServerOptions& options) {
  options.gpu_major = kStandInMajor;
}

ipc::UniqueFd gpu_fd() {
  return ipc::UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC));
}

/// Open files of the stand-in in this process: the daemon's and those of the clients that live here.
std::size_t gpu_fds() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone) == "/dev/zero" ? 1 : 0;
  }
  return count;
}

Status add(RawClient& client, int fd, std::uint32_t index, std::uint64_t bytes = kBytes, bool shared = true) {
  return client.register_region(fd, index, 0, bytes, shared, abi::RegionKind::kVmm);
}

TEST_CASE("a GPU region is shown with its device, accounted, and handed to a rank of the node") {
  Harness harness(stand_in);
  RawClient a(harness.socket()), b(harness.socket());
  join_both(a, b, 3);
  const std::size_t before = gpu_fds();
  REQUIRE(add(a, gpu_fd().get(), 0).ok());
  REQUIRE(add(a, gpu_fd().get(), 1, 4096, false).ok());
  CHECK(gpu_fds() == before + 2);

  const auto regions = harness.control([](SessionServer& server) { return server.regions(); });
  REQUIRE(regions.size() == 2);
  CHECK(regions[0].kind == "vmm");
  CHECK(regions[0].device == 3);
  CHECK(regions[0].bytes == kBytes);
  CHECK(regions[0].shared);
  const auto sessions = harness.control([](SessionServer& server) { return server.sessions(); });
  CHECK(sessions[0].gpu_bytes == kBytes + 4096);
  CHECK(sessions[0].pinned_bytes == kBytes + 4096);
  CHECK(sessions[1].gpu_bytes == 0);
  CHECK(eventually([&] {
    auto* map = b.group_mapping().at<abi::RegionEntry>(b.group_segment().regions_offset);
    return std::atomic_ref<std::uint64_t>(map[0].bytes).load() == kBytes &&
           map[0].kind == static_cast<std::uint32_t>(abi::RegionKind::kVmm);
  }));

  const auto reply = b.map_region(0, 0);
  REQUIRE(reply.status.code == 0);
  CHECK(reply.kind == static_cast<std::uint32_t>(abi::RegionKind::kVmm));
  CHECK(reply.offset == 0);
  CHECK(reply.bytes == kBytes);
  struct stat theirs {};
  REQUIRE(::fstat(b.last_fds().at(0).get(), &theirs) == 0);
  CHECK(major(theirs.st_rdev) == kStandInMajor);
  CHECK(contains(ipc::from_reply(b.map_region(0, 1).status).text(), "did not register it as shared"));

  b.last_fds().clear();
  CHECK(a.leave().ok());
  CHECK(eventually([&] { return gpu_fds() == before; }));  // another thread lets go of it
}

TEST_CASE("plain GPU memory is shown, accounted, and named to a rank of the node") {
  Harness harness;
  RawClient a(harness.socket()), b(harness.socket());
  join_both(a, b, 3);
  abi::RegisterRegion plain{};
  plain.shared = 1;
  plain.offset = 777;
  plain.bytes = 12345;
  plain.ipc.handle[0] = 7;
  plain.ipc.gpu[15] = 8;
  ipc::copy_text(plain.no_dma_buf, "not supported\nby \x01 this driver");
  REQUIRE(a.register_plain(plain).ok());

  const auto regions = harness.control([](SessionServer& server) { return server.regions(); });
  REQUIRE(regions.size() == 1);
  CHECK(regions[0].kind == "ipc");
  CHECK(regions[0].device == 3);
  CHECK(regions[0].bytes == 12345);
  CHECK(regions[0].dma_buf == "no: not supported by   this driver");
  const auto sessions = harness.control([](SessionServer& server) { return server.sessions(); });
  CHECK(sessions[0].gpu_bytes == 12345);

  const auto reply = b.map_region(0, 0);
  REQUIRE(reply.status.code == 0);
  CHECK(reply.kind == static_cast<std::uint32_t>(abi::RegionKind::kIpc));
  CHECK(reply.offset == 777);
  CHECK(reply.bytes == 12345);
  CHECK(std::memcmp(&reply.ipc, &plain.ipc, sizeof(plain.ipc)) == 0);
  CHECK(b.last_fds().empty());

  plain.index = 1;
  const ipc::UniqueFd memfd = std::move(ipc::create_shared_memory("no dma-buf", kBytes)).value();
  CHECK(contains(a.register_plain(plain, memfd.get()).to_string(), "regular file or memfd, not a dma-buf"));
  // The client's end of its own session: held by the daemon it would never read as closed.
  CHECK(contains(a.register_plain(plain, a.fd()).to_string(), "is a socket, not a dma-buf"));
  plain.bytes = 0;
  CHECK(contains(a.register_plain(plain).to_string(), "region of 0 bytes"));
  plain.bytes = ~std::uint64_t{0};
  CHECK(contains(a.register_plain(plain).to_string(), "above limits.max_gpu_bytes"));
  CHECK(a.leave().ok());
  CHECK(harness.control([](SessionServer& server) { return server.regions(); }).empty());
}

TEST_CASE("what is no GPU memory is refused as such, and the session goes on") {
  Harness harness([](ServerOptions& options) {
    options.gpu_major = kStandInMajor;
    options.limits.max_region_bytes = 8 << 20;
    options.limits.max_gpu_bytes = 9 << 20;
  });
  RawClient client(harness.socket());
  REQUIRE(client.hello("gpu", 0).status.code == 0);
  REQUIRE(client.join("g", 1, 0).status.code == 0);
  const auto refusal = [&](int fd, std::uint64_t bytes = kBytes, std::uint64_t offset = 0) {
    return client.register_region(fd, 0, offset, bytes, true, abi::RegionKind::kVmm).to_string();
  };
  const ipc::UniqueFd memfd = std::move(ipc::create_shared_memory("no GPU", kBytes)).value();
  CHECK(contains(refusal(memfd.get()),
                 "INVALID_ARGUMENT: register_region: fd of a region of kind vmm is a regular file or memfd, "
                 "a VMM allocation's is a character device of major 1"));
  // The client's end of its own session: held by the daemon it would never read as closed.
  CHECK(contains(refusal(client.fd()), "is a socket"));
  CHECK(contains(refusal(std::move(ipc::create_event()).value().get()), "is a pipe, event or the like"));
  const ipc::UniqueFd terminal(::open("/dev/ptmx", O_RDWR | O_CLOEXEC | O_NOCTTY));
  if (terminal.valid()) CHECK(contains(refusal(terminal.get()), "is character device 5:2"));

  const ipc::UniqueFd good = gpu_fd();
  CHECK(contains(refusal(good.get(), 4096, 4096), "region offset 4096, a VMM allocation is mapped from 0"));
  CHECK(contains(refusal(good.get(), 0), "region of 0 bytes"));
  CHECK(contains(refusal(good.get(), 4097), "region of 4097 bytes, a VMM allocation has a multiple of 4096"));
  CHECK(contains(refusal(good.get(), (8 << 20) + 4096), "above limits.max_region_bytes = 8388608"));
  CHECK(contains(refusal(good.get(), 10 << 20), "above limits.max_gpu_bytes = 9437184"));
  REQUIRE(add(client, good.get(), 1, 8 << 20).ok());
  CHECK(contains(refusal(good.get(), 4 << 20),
                 "4194304 bytes of GPU memory on top of 8388608 of this session are above "
                 "limits.max_gpu_bytes = 9437184"));

  RawClient hostile(harness.socket());
  REQUIRE(hostile.hello("host only").status.code == 0);
  REQUIRE(hostile.join("h", 1, 0).status.code == 0);
  CHECK(contains(add(hostile, good.get(), 0).to_string(),
                 "FAILED_PRECONDITION: register_region: region of kind vmm from a session of device -1"));
}

TEST_CASE("no NVIDIA device, no GPU memory: the real rule refuses the stand-in") {
  Harness harness;
  RawClient client(harness.socket());
  REQUIRE(client.hello("gpu", 0).status.code == 0);
  REQUIRE(client.join("g", 1, 0).status.code == 0);
  CHECK(contains(add(client, gpu_fd().get(), 0).text(),
                 "is character device 1:5, a VMM allocation's is a character device of major 195"));
}

TEST_CASE("a put from or into GPU memory is refused by name where nothing can move it") {
  Harness harness(stand_in);
  RawClient a(harness.socket()), b(harness.socket());
  REQUIRE(a.hello("a", 0).status.code == 0);
  const std::vector<ipc::UniqueFd> a_fds = std::move(a.last_fds());
  REQUIRE(b.hello("b", 1).status.code == 0);
  const std::vector<ipc::UniqueFd> b_fds = std::move(b.last_fds());
  a.start_join("g", 2, 0);
  REQUIRE(b.join("g", 2, 1).status.code == 0);
  REQUIRE(a.finish_join().status.code == 0);
  const ipc::UniqueFd host = std::move(ipc::create_shared_memory("host", 8192)).value();
  REQUIRE(add(a, gpu_fd().get(), 0).ok());
  REQUIRE(b.register_region(host.get(), 0, 0, 8192).ok());
  auto* map = b.group_mapping().at<abi::RegionEntry>(b.group_segment().regions_offset);
  REQUIRE(eventually([&] { return std::atomic_ref<std::uint64_t>(map[0].bytes).load() == kBytes; }));

  abi::WorkRequest request{};
  request.opcode = static_cast<std::uint8_t>(abi::Opcode::kPut);
  request.length = 4096;
  SUBCASE("into: the group fails, its culprit is the rank that put") {
    request.channel = b.group_segment().first_channel;  // to rank 0 on lane 0
    request.peer = 0;
    put(b, b_fds.at(1).get(), request);
    abi::GroupSegment& segment = a.group_segment();
    REQUIRE(eventually([&] { return std::atomic_ref<std::uint32_t>(segment.abort).load() != 0; }));
    CHECK_MESSAGE(contains(segment.failure.text,
                           "put from rank 1 into region 0 of rank 0 [0, +4096): it is GPU memory"),
                  segment.failure.text);
  }
  SUBCASE("from: the session ends, as after every slot that cannot be obeyed") {
    request.channel = a.group_segment().first_channel + 2;  // to rank 1 on lane 0
    request.peer = 1;
    put(a, a_fds.at(1).get(), request);
    const Status end = a.wait_for_end();
    CHECK(end.code() == StatusCode::kFailedPrecondition);
    CHECK_MESSAGE(contains(end.text(), "local region 0 [0, +4096) is GPU memory"), end.text());
  }
}

/// Rank 0 of group "g" in a process of its own: registers a GPU region once it is told that the daemon is
/// there, says so, and waits to be killed. Forked while the test has one thread.
[[noreturn]] void doomed_rank(const std::string& socket, int go, int ready) {
  char byte = 0;
  if (::read(go, &byte, 1) != 1) ::_exit(1);
  try {
    RawClient client(socket);
    const bool joined = client.hello("doomed", 0).status.code == 0 && client.join("g", 2, 0).status.code == 0;
    if (!joined || !add(client, gpu_fd().get(), 0).ok() || ::write(ready, "r", 1) != 1) ::_exit(2);
    for (;;) ::pause();
  } catch (...) {
    ::_exit(3);
  }
}

TEST_CASE("kill -9 of its owner makes the daemon let go of GPU memory") {
  TemporaryFolder folder;
  const std::string socket = folder.file("s");
  int go[2], ready[2];
  REQUIRE(::pipe2(go, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const pid_t owner = ::fork();
  if (owner == 0) doomed_rank(socket, go[0], ready[1]);
  REQUIRE(owner > 0);
  Harness harness([&](ServerOptions& options) {
    stand_in(options);
    options.listener.path = socket;
  });
  const std::size_t before = gpu_fds();
  REQUIRE(::write(go[1], "g", 1) == 1);
  RawClient peer(socket);
  REQUIRE(peer.hello("peer", 1).status.code == 0);
  REQUIRE(peer.join("g", 2, 1).status.code == 0);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  REQUIRE(peer.map_region(0, 0).status.code == 0);
  CHECK(gpu_fds() == before + 2);  // the daemon's and the peer's

  REQUIRE(::kill(owner, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(owner, &status, 0) == owner);
  CHECK(eventually([&] { return harness.session_count() == 1; }));
  // What the peer has mapped is the peer's to give up.
  CHECK(eventually([&] { return gpu_fds() == before + 1; }));
  peer.last_fds().clear();
  CHECK(gpu_fds() == before);
  for (const int fd : {go[0], go[1], ready[0], ready[1]}) ::close(fd);
}

}  // namespace
}  // namespace mkernel::session::testing
