// The default tables: what is in them, what comes first, and that they fit.
#include "tools/mkctl/brief.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "mkernel/v1/control.pb.h"
#include "tools/mkctl/table.h"
#include "tools/mkctl/text.h"

namespace mkernel::mkctl {
namespace {

using Json = nlohmann::ordered_json;

const std::string kLong(300, 'x');
constexpr std::uint64_t kMost = ~std::uint64_t{0};

v1::Session session(std::uint64_t id) {
  v1::Session row;
  row.set_id(id);
  row.set_client_name("train");
  row.set_pid(4711);
  row.set_device(-1);
  row.set_idle_seconds(75);
  return row;
}

template <typename... Rows>
Json rows(const Rows&... row) {
  Json list = Json::array();
  (list.push_back(to_json(row)), ...);
  return list;
}

/// The cell of row `row` (0: the first below the heading) under `heading`.
std::string cell(const Brief& table, std::size_t row, const std::string& heading) {
  const auto& names = table.lines.at(0);
  const auto found = std::find(names.begin(), names.end(), heading);
  REQUIRE_MESSAGE(found != names.end(), heading);
  return table.lines.at(row + 1).at(static_cast<std::size_t>(found - names.begin()));
}

std::size_t widest_line(const Brief& table) {
  std::ostringstream out;
  print_aligned(out, table.lines);
  std::istringstream lines(out.str());
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, columns_of(line));
  return widest;
}

TEST_CASE("the longest names and the largest numbers fit into the width") {
  v1::Session s = session(99999999);
  s.set_uid(4294967294U);
  s.set_client_name(kLong);
  s.set_pid(4194304);
  s.set_device(127);
  s.set_idle_seconds(1e7);
  s.set_errors_total(kMost);
  s.set_bytes_per_second(1e15);
  s.set_arrived_bytes_per_second(1e15);
  s.set_ring_depth(1048576);
  s.set_launches_total(kMost);
  s.set_fallbacks_total(kMost);
  CHECK(widest_line(brief("sessions", rows(s), Json::array(), 0)) <= kBriefWidth);

  v1::User u;
  u.set_uid(4294967294U);
  u.set_name(kLong);
  for (const auto set :
       {&v1::User::set_sessions, &v1::User::set_max_sessions, &v1::User::set_connections,
        &v1::User::set_max_connections, &v1::User::set_groups, &v1::User::set_regions,
        &v1::User::set_max_regions, &v1::User::set_fds, &v1::User::set_max_fds, &v1::User::set_pinned_bytes,
        &v1::User::set_gpu_bytes, &v1::User::set_daemon_bytes, &v1::User::set_refusals_total}) {
    (u.*set)(kMost);
  }
  CHECK(widest_line(brief("users", rows(u), Json::array(), 0)) <= kBriefWidth);

  v1::PeerRow p;
  p.set_address(kLong);
  p.set_node(kLong);
  p.set_state("connecting");
  p.set_transport(kLong);
  p.set_silent_seconds(1e9);
  p.set_unacknowledged(kMost);
  p.set_paths_lost_total(kMost);
  p.set_clock_offset_ms(-1e9);
  p.set_round_trip_ms(1e9);
  for (int rail = 0; rail < 64; ++rail) p.add_rails()->set_rail(static_cast<std::uint32_t>(rail));
  CHECK(widest_line(brief("peers", rows(p), Json::array(), 0)) <= kBriefWidth);

  v1::Channel c;
  c.set_session(99999999);
  c.set_group(kLong);
  c.set_rank(1023);
  c.set_peer_rank(1022);
  c.set_peer_node(kLong);
  c.set_lane(63);
  c.set_puts_total(kMost);
  c.set_bytes_total(kMost);
  c.set_arrivals_total(kMost);
  v1::Channel before = c;
  before.set_puts_total(1);
  before.set_bytes_total(1);
  CHECK(widest_line(brief("channels", rows(c), rows(before), 0.25)) <= kBriefWidth);
}

TEST_CASE("sessions: what is not well comes first, the rest in the daemon's order") {
  v1::Session idle = session(1), active = session(2), stuck = session(3), failed = session(4);
  active.set_idle_seconds(0.2);
  stuck.set_ring_depth(12);
  failed.set_errors_total(3);
  v1::Session busy = active;  // its ring is not empty, but it moves
  busy.set_id(5);
  busy.set_ring_depth(9);
  const Brief table = brief("sessions", rows(idle, active, stuck, failed, busy), Json::array(), 0);
  std::string order;
  for (std::size_t row = 0; row < 5; ++row) order += cell(table, row, "STATE") + cell(table, row, "ID") + " ";
  CHECK(order == "errors4 stuck3 active2 active5 idle1 ");
  REQUIRE(table.notes.size() == 1);
  CHECK(table.notes[0].find("session 4: 3 puts went nowhere") == 0);
}

TEST_CASE("sessions: who, since when idle, and how fast; what is not known is a dash") {
  v1::Session known = session(1);
  known.set_uid(0);
  known.set_bytes_per_second(3 * 1024.0 * 1024);
  known.set_arrived_bytes_per_second(0);
  known.set_launches_total(12'345);
  known.set_fallbacks_total(7);
  const Brief table = brief("sessions", rows(known, session(2)), Json::array(), 0);
  CHECK(cell(table, 0, "USER") == "root");
  CHECK(cell(table, 0, "NAME") == "train");
  CHECK(cell(table, 0, "IDLE") == "75 s");
  CHECK(cell(table, 0, "BYTES/S") == "3.0 MiB");
  CHECK(cell(table, 0, "IN/S") == "0 B");
  CHECK(cell(table, 0, "GPU") == "-");
  CHECK(cell(table, 0, "LAUNCHES") == "12.3 k");
  CHECK(cell(table, 0, "FALLBACKS") == "7");
  CHECK(cell(table, 1, "BYTES/S") == "-");
  CHECK(cell(table, 1, "IN/S") == "-");
}

TEST_CASE("users: what they hold of what they may, and who is slowed down comes first with the reason") {
  v1::User quiet, refused, slowed;
  quiet.set_name("alice");
  quiet.set_sessions(3);
  quiet.set_max_sessions(128);
  refused.set_uid(1001);
  refused.set_refusals_total(2);
  slowed.set_uid(1002);
  slowed.set_waiting(4);
  const Brief table = brief("users", rows(quiet, refused, slowed), Json::array(), 0);
  REQUIRE(table.lines.size() == 4);
  CHECK(table.lines[1][0] == "waiting");
  CHECK(table.lines[1][1] == "1002");  // no name is known
  CHECK(table.lines[2][0] == "refused");
  CHECK(table.lines[2].back() == "2");
  CHECK(table.lines[3][0] == "ok");
  CHECK(table.lines[3][1] == "alice");
  CHECK(table.lines[3][2] == "3/128");
  REQUIRE(table.notes.size() == 1);
  CHECK(table.notes[0].find("user 1002: 4 sessions are read more slowly") == 0);
}

TEST_CASE("peers: an alive one with a rail down is degraded, and the notes say why") {
  v1::PeerRow well;
  well.set_address("10.0.0.1:7600");
  well.set_node("a");
  well.set_state("alive");
  well.add_rails()->set_connected(true);
  v1::PeerRow degraded = well;
  degraded.set_node("b");
  v1::PeerRail& lost = *degraded.add_rails();
  lost.set_rail(1);
  lost.set_connected(true);
  lost.set_down(true);
  lost.set_last_loss("mlx5_0 - mlx5_1: pulled");
  v1::PeerRow dead = well;
  dead.set_node("");
  dead.set_state("dead");
  dead.set_reason("silent for 60 s");
  const Brief table = brief("peers", rows(well, degraded, dead), Json::array(), 0);
  CHECK(cell(table, 0, "STATE") == "dead");
  CHECK(cell(table, 0, "NODE") == "-");
  CHECK(cell(table, 1, "STATE") == "degraded");
  CHECK(cell(table, 1, "RAILS") == "1/2");
  CHECK(cell(table, 2, "STATE") == "alive");
  CHECK(cell(table, 2, "RTT") == "-");
  REQUIRE(table.notes.size() == 2);
  CHECK(table.notes[0] == "b: rail 1 was lost: mlx5_0 - mlx5_1: pulled");
  CHECK(table.notes[1] == "10.0.0.1:7600: silent for 60 s");
}

TEST_CASE("channels: rates from two looks, and puts that nobody completes") {
  v1::Channel before;
  before.set_session(1);
  before.set_group("g");
  before.set_puts_total(10);
  before.set_completed_total(10);
  before.set_bytes_total(1000);
  v1::Channel moving = before, waiting = before, quiet = before, young = before;
  moving.set_puts_total(15);
  moving.set_completed_total(12);
  moving.set_bytes_total(1000 + 512);
  waiting.set_lane(1);
  waiting.set_puts_total(11);
  quiet.set_lane(2);
  young.set_lane(3);  // was not there at the first look
  v1::Channel before1 = before, before2 = before;
  before1.set_lane(1);
  before2.set_lane(2);
  const Brief table =
      brief("channels", rows(quiet, young, moving, waiting), rows(before, before1, before2), 0.5);
  CHECK(cell(table, 0, "STATE") == "waiting");
  CHECK(cell(table, 0, "UNDER WAY") == "1");
  CHECK(cell(table, 1, "STATE") == "moving");
  CHECK(cell(table, 1, "PUTS/S") == "10");
  CHECK(cell(table, 1, "BYTES/S") == "1.0 KiB");
  CHECK(cell(table, 1, "RANKS") == "0>0");
  CHECK(cell(table, 2, "STATE") == "quiet");
  CHECK(cell(table, 2, "PUTS/S") == "0");
  CHECK(cell(table, 3, "PUTS/S") == "-");
}

TEST_CASE("text that a client or a peer chose moves no cursor and is cut by characters") {
  CHECK(cut("a\x1b[2Jb\n", 20) == "a?[2Jb?");
  CHECK(cut("\xc3\xa4\xc3\xb6\xc3\xbc", 3) == "\xc3\xa4\xc3\xb6\xc3\xbc");
  CHECK(cut("\xc3\xa4\xc3\xb6\xc3\xbc", 2) == "\xc3\xa4~");
  CHECK(cut("abc", 3) == "abc");
  CHECK(cut("abcd", 3) == "ab~");
  std::ostringstream out;
  print_aligned(out, {{"A", "B"}, {"\x1b[31m", "x"}});
  CHECK(out.str() == "A      B\n?[31m  x\n");
}

TEST_CASE("notes are broken at spaces, spans have one unit") {
  CHECK(wrapped("one two three four", 9) == std::vector<std::string>{"one two", "    three", "    four"});
  CHECK(wrapped(kLong, 120).at(0).size() == 120);
  CHECK(span(0.25) == "0.2 s");
  CHECK(span(61) == "61 s");
  CHECK(span(600) == "10 min");
  CHECK(span(7200) == "2 h");
  CHECK(span(10 * 86400.0) == "10 d");
}

}  // namespace
}  // namespace mkernel::mkctl
