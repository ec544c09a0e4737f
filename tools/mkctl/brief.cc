#include "tools/mkctl/brief.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tools/mkctl/table.h"
#include "tools/mkctl/text.h"
#include "tools/mkctl/user_name.h"

namespace mkernel::mkctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kStuckSeconds = 1;

/// One row, and what it was at the earlier look, if it was there.
struct Look {
  const Json& now;
  const Json* before = nullptr;
  double seconds = 0;

  double number(const char* key) const {
    return now.value(key, Json(0)).is_null() ? 0 : now.at(key).get<double>();
  }
  std::string text(const char* key) const { return now.at(key).get<std::string>(); }
  /// By which the total grew between the looks.
  std::optional<double> growth(const char* key) const {
    if (before == nullptr || now.at(key).is_null() || before->at(key).is_null()) return std::nullopt;
    return now.at(key).get<double>() - before->at(key).get<double>();
  }
  std::string rate(const char* key, bool bytes) const {
    const auto grown = growth(key);
    return grown && seconds > 0 ? scaled(*grown / seconds, bytes) : "-";
  }
};

/// A state, and how far it is from well: the worst come first.
struct State {
  const char* name;
  int badness;
};

struct Column {
  const char* heading;
  std::size_t width;  ///< at most
  std::function<std::string(const Look&)> cell;
};

struct Table {
  std::function<State(const Look&)> state;
  std::vector<Column> columns;                   ///< after STATE
  std::function<std::string(const Look&)> note;  ///< empty: nothing to say
  std::vector<const char*> identity;             ///< what makes two rows speak of the same thing
};

// ---- sessions

State session_state(const Look& look) {
  if (look.number("errors_total") > 0) return {"errors", 3};
  if (look.number("ring_depth") > 0 && look.number("idle_seconds") >= kStuckSeconds) return {"stuck", 2};
  return look.number("idle_seconds") < kStuckSeconds ? State{"active", 1} : State{"idle", 0};
}

std::string bytes_or_dash(const Look& look, const char* key) {
  return look.now.value(key, Json()).is_null() ? "-" : scaled(look.number(key), true);
}

std::string plain_number(const Look& look, const char* key) {
  return look.now.at(key).dump();
}

Table sessions() {
  return {session_state,
          {{"ID", 8, [](const Look& s) { return plain_number(s, "id"); }},
           {"USER", 10, [](const Look& s) { return user_name(s.now.at("uid").get<uid_t>()); }},
           {"NAME", 16, [](const Look& s) { return s.text("client_name"); }},
           {"PID", 8, [](const Look& s) { return plain_number(s, "pid"); }},
           {"GPU", 3, [](const Look& s) { return s.number("device") < 0 ? "-" : plain_number(s, "device"); }},
           {"IDLE", 7, [](const Look& s) { return span(s.number("idle_seconds")); }},
           {"BYTES/S", 10, [](const Look& s) { return bytes_or_dash(s, "bytes_per_second"); }},
           {"IN/S", 10, [](const Look& s) { return bytes_or_dash(s, "arrived_bytes_per_second"); }},
           {"RING", 6, [](const Look& s) { return plain_number(s, "ring_depth"); }},
           {"LAUNCHES", 9, [](const Look& s) { return scaled(s.number("launches_total"), false); }},
           {"FALLBACKS", 9, [](const Look& s) { return scaled(s.number("fallbacks_total"), false); }}},
          [](const Look& s) {
            if (s.number("errors_total") == 0) return std::string();
            return "session " + plain_number(s, "id") + ": " + plain_number(s, "errors_total") +
                   " puts went nowhere: their group had failed (mkctl groups says why)";
          },
          {"id"}};
}

// ---- users

State user_state(const Look& look) {
  if (look.number("waiting") > 0) return {"waiting", 2};
  return look.number("refusals_total") > 0 ? State{"refused", 1} : State{"ok", 0};
}

/// "3/128": what there is of what may be.
std::string of(const Look& user, const char* held, const char* limit) {
  return plain_number(user, held) + "/" + plain_number(user, limit);
}

Table users() {
  return {user_state,
          {{"USER", 10,
            [](const Look& u) { return u.text("name").empty() ? plain_number(u, "uid") : u.text("name"); }},
           {"SESSIONS", 8, [](const Look& u) { return of(u, "sessions", "max_sessions"); }},
           {"CONNS", 8, [](const Look& u) { return of(u, "connections", "max_connections"); }},
           {"GROUPS", 6, [](const Look& u) { return plain_number(u, "groups"); }},
           {"REGIONS", 10, [](const Look& u) { return of(u, "regions", "max_regions"); }},
           {"PINNED", 9, [](const Look& u) { return bytes_or_dash(u, "pinned_bytes"); }},
           {"GPU", 9, [](const Look& u) { return bytes_or_dash(u, "gpu_bytes"); }},
           {"FDS", 11, [](const Look& u) { return of(u, "fds", "max_fds"); }},
           {"DAEMON", 9, [](const Look& u) { return bytes_or_dash(u, "daemon_bytes"); }},
           {"REFUSED", 7, [](const Look& u) { return scaled(u.number("refusals_total"), false); }}},
          [](const Look& u) {
            if (u.number("waiting") == 0) return std::string();
            return "user " + plain_number(u, "uid") + ": " + plain_number(u, "waiting") +
                   " sessions are read more slowly than they ask: joins and the like are above "
                   "limits.joins_per_second or the user's own, or a peer is far behind";
          },
          {"uid"}};
}

// ---- peers

bool rail_is_up(const Json& rail) {
  return rail.at("connected").get<bool>() && !rail.at("down").get<bool>();
}

std::size_t rails_up(const Look& look) {
  const Json& rails = look.now.at("rails");
  return static_cast<std::size_t>(std::count_if(rails.begin(), rails.end(), rail_is_up));
}

State peer_state(const Look& look) {
  const std::string state = look.text("state");
  if (state == "alive")
    return rails_up(look) < look.now.at("rails").size() ? State{"degraded", 2} : State{"alive", 0};
  static constexpr State kStates[] = {{"dead", 5}, {"error", 4}, {"warn", 3}, {"connecting", 1}};
  for (const State& known : kStates)
    if (state == known.name) return known;
  return {"unknown", 5};
}

std::string milliseconds(const Look& look, const char* key) {
  return look.now.at(key).is_null() ? "-" : fixed(look.number(key), 1) + " ms";
}

std::string peer_note(const Look& peer) {
  const std::string name = peer.text("node").empty() ? peer.text("address") : peer.text("node");
  std::string note = peer.text("reason");
  for (const Json& rail : peer.now.at("rails")) {
    if (rail_is_up(rail) || peer.text("state") != "alive") continue;
    const std::string why = rail.at("last_loss").get<std::string>();
    note += (note.empty() ? "" : "; ") + ("rail " + rail.at("rail").dump()) +
            (why.empty() ? " is not connected" : " was lost: " + why);
  }
  return note.empty() ? note : name + ": " + note;
}

/// "2 x tcp" -> "tcp": how many there are is in RAILS.
std::string transport_kind(const Look& peer) {
  const std::string text = peer.text("transport");
  const std::size_t times = text.find(" x ");
  return times == std::string::npos ? text : text.substr(times + 3);
}

Table peers() {
  return {peer_state,
          {{"NODE", 18, [](const Look& p) { return p.text("node"); }},
           {"ADDRESS", 23, [](const Look& p) { return p.text("address"); }},
           {"RAILS", 5,
            [](const Look& p) {
              return std::to_string(rails_up(p)) + "/" + std::to_string(p.now.at("rails").size());
            }},
           {"KIND", 8, transport_kind},
           {"SILENT", 7, [](const Look& p) { return span(p.number("silent_seconds")); }},
           {"LOST", 6, [](const Look& p) { return scaled(p.number("paths_lost_total"), false); }},
           {"RTT", 9, [](const Look& p) { return milliseconds(p, "round_trip_ms"); }},
           {"CLOCK", 9, [](const Look& p) { return milliseconds(p, "clock_offset_ms"); }},
           {"UNACKED", 7, [](const Look& p) { return scaled(p.number("unacknowledged"), false); }}},
          peer_note,
          {"address"}};
}

// ---- channels

State channel_state(const Look& look) {
  const bool under_way = look.number("puts_total") > look.number("completed_total");
  if (look.before == nullptr) return under_way ? State{"moving", 1} : State{"quiet", 0};
  if (under_way && look.growth("completed_total") == 0.0) return {"waiting", 2};
  const bool moves = under_way || look.growth("puts_total") != 0.0 || look.growth("arrivals_total") != 0.0;
  return moves ? State{"moving", 1} : State{"quiet", 0};
}

Table channels() {
  return {
      channel_state,
      {{"SESSION", 7, [](const Look& c) { return plain_number(c, "session"); }},
       {"GROUP", 16, [](const Look& c) { return c.text("group"); }},
       {"RANKS", 9,
        [](const Look& c) { return plain_number(c, "rank") + ">" + plain_number(c, "peer_rank"); }},
       {"NODE", 14, [](const Look& c) { return c.text("peer_node"); }},
       {"LANE", 4, [](const Look& c) { return plain_number(c, "lane"); }},
       {"PUTS/S", 7, [](const Look& c) { return c.rate("puts_total", false); }},
       {"BYTES/S", 10, [](const Look& c) { return c.rate("bytes_total", true); }},
       {"UNDER WAY", 9,
        [](const Look& c) { return scaled(c.number("puts_total") - c.number("completed_total"), false); }},
       {"SENT", 9, [](const Look& c) { return bytes_or_dash(c, "bytes_total"); }},
       {"ARRIVED", 8, [](const Look& c) { return scaled(c.number("arrivals_total"), false); }}},
      [](const Look&) { return std::string(); },
      {"session", "group", "peer_rank", "lane"}};
}

std::optional<Table> table_of(const std::string& name) {
  if (name == "sessions") return sessions();
  if (name == "users") return users();
  if (name == "peers") return peers();
  if (name == "channels") return channels();
  return std::nullopt;
}

constexpr std::size_t kStateWidth = 10;

}  // namespace

bool has_brief(const std::string& table) {
  return table_of(table).has_value();
}

bool brief_needs_two_looks(const std::string& table) {
  return table == "channels";
}

Brief brief(const std::string& name, const Json& rows, const Json& before, double seconds) {
  const Table table = table_of(name).value();
  std::vector<std::pair<int, std::vector<std::string>>> lines;
  Brief made;
  std::size_t last = SIZE_MAX;
  for (const Json& row : rows) {
    const auto same = [&](const Json& other) {
      return std::all_of(table.identity.begin(), table.identity.end(),
                         [&](const char* key) { return other.at(key) == row.at(key); });
    };
    const Look look{row, seconds > 0 ? find_row(before, last, same) : nullptr, seconds};
    const State state = table.state(look);
    std::vector<std::string> line{cut(state.name, kStateWidth)};
    for (const Column& column : table.columns) {
      const std::string cell = column.cell(look);
      line.push_back(cell.empty() ? "-" : cut(cell, column.width));
    }
    lines.emplace_back(state.badness, std::move(line));
    if (const std::string note = table.note(look); !note.empty()) made.notes.push_back(note);
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  made.lines.push_back({"STATE"});
  for (const Column& column : table.columns) made.lines[0].emplace_back(column.heading);
  for (auto& [badness, line] : lines) made.lines.push_back(std::move(line));
  return made;
}

}  // namespace mkernel::mkctl
