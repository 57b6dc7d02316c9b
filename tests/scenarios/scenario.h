// Scenarios: events of a core, and what it decides, in the words of `ddpctl replay`.
//
//   # a comment
//   node running / worker_ended 1 exit=3 => tell the workers that rank 1 is gone; tell the leader WorkerFailed of …
//       the rest of a long line
//   {"unix_us":…,"core":"group",…} => … of a line of a recording (ddprun --record), as it is
//
// "node" begins a NodeCore, "leader" a RoundCore, with fields for the config; with "running" it is in its first round.
// An event is a name, words, fields, and after ": " a text. It has the name that it has in a recording (agent/README.md),
// a message that of its type. What is about a round is about the core's current one, unless it says "round=N". An event
// of a leader begins with the node or nodes that it comes from; "+30s" lets time pass and the timer fire, "later 30s"
// lets time pass alone. Of several events in a line, the last one's decisions are shown: those before lead there.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace ddprun::test {

// The text of a scenario with the decisions that its events lead to now. Throws std::invalid_argument, with the line,
// for an event that cannot be read.
std::string replayed_scenario(std::string_view text);

// The texts of all scenarios, by file.
std::map<std::filesystem::path, std::string> scenarios();

}  // namespace ddprun::test
