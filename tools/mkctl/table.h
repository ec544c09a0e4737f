// Replies of the control service as JSON and as tables, by reflection: field names are keys and columns.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

namespace mkernel::mkctl {

/// The message with its field names as keys and raw numbers.
nlohmann::ordered_json to_json(const google::protobuf::Message& message);

/// The row of an earlier reply that `fits`, null without one. Both replies have their rows in the same order,
/// so the search begins behind the row that was found last, whose number is kept in `last`.
template <typename Fits>
const nlohmann::ordered_json* find_row(const nlohmann::ordered_json& rows, std::size_t& last,
                                       const Fits& fits) {
  for (std::size_t looked = 0; looked < rows.size(); ++looked) {
    last = last + 1 < rows.size() ? last + 1 : 0;
    if (fits(rows[last])) return &rows[last];
  }
  return nullptr;
}

/// A list of rows as an aligned table with people's units; `rates`: columns that end in _total are shown per
/// second, from the difference to `before` (rows of an earlier reply, matched by their identifying columns).
void print_rows(std::ostream& out, const nlohmann::ordered_json& rows, const nlohmann::ordered_json& before,
                double seconds);

/// One row as "key  value" lines.
void print_fields(std::ostream& out, const nlohmann::ordered_json& fields);

}  // namespace mkernel::mkctl
