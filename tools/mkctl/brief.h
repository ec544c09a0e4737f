// The tables that `mkctl sessions`, `users`, `peers` and `channels` show unless all columns are asked for:
// what one looks for, in lines of at most kBriefWidth columns, those that are not well first.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mkernel::mkctl {

inline constexpr std::size_t kBriefWidth = 120;

struct Brief {
  std::vector<std::vector<std::string>> lines;  ///< the first is the heading
  std::vector<std::string> notes;               ///< below the table: what is wrong, in words
};

/// Whether there is one for this table.
bool has_brief(const std::string& table);
/// Whether its rates need an earlier look: the daemon keeps none for them.
bool brief_needs_two_looks(const std::string& table);

/// `rows` as the daemon told them, `before` those of `seconds` ago (0: there was no such look).
///
/// STATE of a session: errors (puts that went nowhere, because their group had failed), stuck (slots wait in
/// a ring and nothing has moved for a second), active, idle. Of a peer: as the daemon says, and degraded for
/// one that is alive while a rail to it is down. Of a channel: waiting (puts under way, and none was
/// completed between the looks), moving, quiet.
///
/// LAUNCHES (of operations) and FALLBACKS (calls that a framework made in its own way, because mkernel has
/// nothing for them) are a session's own word. A launch that a CUDA graph captured counts once: the host sees
/// no replay.
Brief brief(const std::string& table, const nlohmann::ordered_json& rows,
            const nlohmann::ordered_json& before, double seconds);

}  // namespace mkernel::mkctl
