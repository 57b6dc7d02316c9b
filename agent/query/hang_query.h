// What one agent asks the others when a rank of theirs hangs (--on-hang=restart), and their answers: values and
// their JSON. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/ids.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

// Kill these ranks. It is asked of all nodes, since the asker does not know on which ones they are.
struct EndHung {
  Round round{};
  std::vector<int> ranks;
  std::string why;    // the verdict, a sentence
  std::string stack;  // of their main threads; a line per frame

  bool operator==(const EndHung&) const = default;
};
// Not longer than a question may be: of the stack the innermost frames.
std::string to_json(EndHung question);
Result<EndHung> end_hung_from(std::string_view json);

struct EndHungAnswer {
  std::vector<int> here;  // those of the ranks that are this node's
  std::string refused;    // why they are not killed; empty: they are, or have ended before

  bool operator==(const EndHungAnswer&) const = default;
};
std::string to_json(const EndHungAnswer& answer);
Result<EndHungAnswer> end_hung_answer_from(std::string_view json);

}  // namespace ddprun::agent
