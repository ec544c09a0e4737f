// The C ABI, called from C (c_abi_calls.c) against the fake daemon.
#include "mkernel/mkernel.h"
#include "tests/unit/client/process.h"
#include "tests/unit/client/ranks.h"

extern "C" const char* mk_test_versions(void);
extern "C" const char* mk_test_null(void);
extern "C" const char* mk_test_errors(const char* socket);
extern "C" const char* mk_test_rank(const char* socket, unsigned rank, unsigned world);
extern "C" const char* mk_test_gemm(const char* socket);
extern "C" const char* mk_test_struct_sizes(const char* socket);
extern "C" const char* mk_test_kinds(const char* socket);
extern "C" const char* mk_test_grouped_gemm(const char* socket);
extern "C" const char* mk_test_backward(const char* socket);
extern "C" const char* mk_test_varlen(const char* socket);

namespace mkernel::test {
namespace {

TEST_CASE("C: versions and names") {
  CHECK(std::string(mk_test_versions()) == "");
}

TEST_CASE("C: a NULL handle is refused by the name of the function, everywhere") {
  CHECK(std::string(mk_test_null()) == "");
}

TEST_CASE("C: errors carry a code and a text for the calling thread") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_errors(daemon.socket().c_str())) == "");
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("C: two ranks exchange, put and wait") {
  FakeDaemon daemon;
  on_all_ranks(2, [&](std::uint32_t rank) {
    CHECK(std::string(mk_test_rank(daemon.socket().c_str(), rank, 2)) == "");
  });
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
  CHECK(daemon.look().puts == 0 + 2 * 2);
}

TEST_CASE("C: a GEMM operation runs where its executor can, and says where it cannot") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_gemm(daemon.socket().c_str())) == "");
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("C: structs of another version's header are read, or refused by name") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_struct_sizes(daemon.socket().c_str())) == "");
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("C: one handle for the five operations, and functions say when it is another one's") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_kinds(daemon.socket().c_str())) == "");
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("C: a grouped GEMM") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_grouped_gemm(daemon.socket().c_str())) == "");
}

TEST_CASE("C: the backward passes of attention and of ring attention") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_backward(daemon.socket().c_str())) == "");
}

TEST_CASE("C: attention of sequences of different lengths") {
  FakeDaemon daemon;
  CHECK(std::string(mk_test_varlen(daemon.socket().c_str())) == "");
}

TEST_CASE("C: a thread that cannot be started is an error, not an exception") {
  FakeDaemon daemon;
  const mk_session_options options{
      .struct_size = sizeof(options), .socket = daemon.socket().c_str(), .device = -1, .timeout_ms = 30000};
  mk_session* session = nullptr;
  {
    const NoThreads limit;
    CHECK(mk_connect(&options, &session) == MK_RESOURCE_EXHAUSTED);
    CHECK(std::string(mk_last_error()).find("cannot start a thread") != std::string::npos);
  }
  CHECK(session == nullptr);
  REQUIRE(mk_connect(&options, &session) == MK_OK);
  mk_session_destroy(session);
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("C: a forked child is refused, and its handles end without a word") {
  FakeDaemon daemon;
  const mk_session_options options{
      .struct_size = sizeof(options), .socket = daemon.socket().c_str(), .device = -1, .timeout_ms = 30000};
  mk_session* session = nullptr;
  REQUIRE(mk_connect(&options, &session) == MK_OK);
  const mk_group_options joining{.struct_size = sizeof(joining), .name = "test", .world_size = 1, .rank = 0};
  mk_group* group = nullptr;
  REQUIRE(mk_join(session, &joining, &group) == MK_OK);
  mk_symmetric* buffer = nullptr;
  REQUIRE(mk_symmetric_create(group, 4096, &buffer) == MK_OK);
  CHECK(in_child([&] {
          const bool refused = mk_barrier(group) == MK_FAILED_PRECONDITION &&
                               std::string(mk_last_error()).find("was forked") != std::string::npos;
          const bool uncounted = mk_session_count_fallback(session) == MK_FAILED_PRECONDITION;
          mk_symmetric_destroy(buffer);
          mk_group_destroy(group);
          mk_session_destroy(session);
          return refused && uncounted ? 0 : 1;
        }) == 0);
  CHECK(daemon.look().fallbacks == 0);
  CHECK(mk_session_count_fallback(session) == MK_OK);
  CHECK(daemon.look().fallbacks == 1);
  CHECK(mk_barrier(group) == MK_OK);
  CHECK(daemon.look().members == 1);
  // Ranks that are not there have no buffer.
  CHECK(mk_symmetric_peer(buffer, 0) == mk_symmetric_data(buffer));
  for (const std::uint32_t rank : {1U, 1000U, ~0U}) CHECK(mk_symmetric_peer(buffer, rank) == nullptr);
  mk_symmetric_destroy(buffer);
  mk_group_destroy(group);
  mk_session_destroy(session);
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

}  // namespace
}  // namespace mkernel::test
