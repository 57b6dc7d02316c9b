// Questions, and answers about workers' logs: values and their JSON. Pure.
//
// A place in a log is a round and a byte offset. A follower sends with each question where the last
// answer ended; the first question gets the last lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/output/stream.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

// What every question has, of ddpctl and of other nodes.
struct Question {
  std::string ask;
  bool past = false;
  bool follow = false;
  int rank = -1;
  std::string by = {};  // the asking process, where another node passes the request on
  std::string node = {};
  bool at_once = false;
};
Result<Question> question_from(std::string_view json);

struct LogPlace {
  int rank = 0;
  Stream stream = Stream::kStdout;
  std::uint64_t round = 0;
  std::uint64_t at = 0;
  bool operator==(const LogPlace&) const = default;
};

struct LogQuery {
  static constexpr int kLinesMax = 1000;

  std::vector<int> ranks;        // empty: all
  int lines = 20;                // how many of the last lines, for logs without a place
  bool is_final = true;          // include an unfinished last line
  std::vector<LogPlace> places;  // where to continue
  bool operator==(const LogQuery&) const = default;
};
std::string to_json(const LogQuery& question);
Result<LogQuery> log_query_from(std::string_view json);

// Output of one stream of one worker.
struct LogPart {
  enum class Source { kFile, kRecent, kElsewhere };
  LogPlace next;  // which stream, and where the next part begins
  std::string host;
  Source source = Source::kFile;
  std::string file;          // kFile
  std::string text;          // whole lines, except perhaps the last one
  std::uint64_t missed = 0;  // bytes before `text` that are no longer kept
  std::string trouble;       // the file cannot be read: why
  bool operator==(const LogPart&) const = default;
};
std::string to_json(const std::vector<LogPart>& parts);
Result<std::vector<LogPart>> log_parts_from(std::string_view json);

// The last `lines` lines of `text`, which ends where the log ends now.
std::string_view last_lines(std::string_view text, int lines);
// How many bytes at the beginning of a line its last carriage return overwrites: a progress bar is
// what follows.
std::size_t overwritten_in(std::string_view line);
// The whole lines of `text`, after which more may come soon; all of it if `must_be_all`.
std::string_view whole_lines(std::string_view text, bool must_be_all);

}  // namespace ddprun::agent
