// Checks whether a recorded history of operations on one key is possible for a store that performs
// them one at a time, each between its call and its return. (Wing and Gong's search, with Lowe's
// cache of configurations that have failed.) Keys are independent, so a history over many keys is
// checked key by key. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::rdzv::testing {

struct Operation {
  enum class Kind { kSet, kGet, kAdd, kCompareSet, kDelete, kAppend };
  Kind kind = Kind::kGet;
  std::string value;       // SET, APPEND; COMPARE_SET's desired value
  std::string expected;    // COMPARE_SET
  std::int64_t delta = 0;  // ADD
  std::string
      result;  // GET, COMPARE_SET: bytes; ADD, DELETE: the number as text; SET, APPEND: none
  std::uint64_t called = 0;
  std::uint64_t returned =
      0;  // of a request without reply: when the next reply came on its connection
};

// The key does not exist at the beginning.
bool is_linearizable(const std::vector<Operation>& history);

}  // namespace ddprun::rdzv::testing
