#include "agent/query/log_query.h"

#include "agent/text/json_fields.h"

namespace ddprun::agent {

template <>
inline constexpr std::array<std::string_view, 2> kNames<Stream>{"stdout", "stderr"};
template <>
inline constexpr std::array<std::string_view, 3> kNames<LogPart::Source>{"file", "recent",
                                                                         "elsewhere"};

static void fields(auto& json, Is<Question> auto& question) {
  json("ask", question.ask);
  json.may_lack("past", question.past);
  json.may_lack("follow", question.follow);
  json.may_lack("rank", question.rank);
  json.may_lack("by", question.by);
  json.may_lack("node", question.node);
  json.may_lack("at_once", question.at_once);
}

static void fields(auto& json, Is<LogPlace> auto& place) {
  json("rank", place.rank);
  json("stream", place.stream);
  json("round", place.round);
  json("at", place.at);
}

static void fields(auto& json, Is<LogQuery> auto& question) {
  json.constant("ask", "log");
  json("ranks", question.ranks);
  json("lines", question.lines);
  json("is_final", question.is_final);
  json("places", question.places);
}

static void fields(auto& json, Is<LogPart> auto& part) {
  fields(json, part.next);
  json("host", part.host);
  json("source", part.source);
  json("file", part.file);
  json("text", Whole{part.text});
  json("missed", part.missed);
  json("trouble", part.trouble);
}

Result<Question> question_from(std::string_view text) {
  return parse_json<Question>(text, "the question");
}

std::string to_json(const LogQuery& question) {
  return boost::json::serialize(JsonWriter::of(question));
}

Result<LogQuery> log_query_from(std::string_view text) {
  auto question = parse_json<LogQuery>(text, "the question for logs");
  if (question) question->lines = std::clamp(question->lines, 0, LogQuery::kLinesMax);
  return question;
}

std::string to_json(const std::vector<LogPart>& parts) {
  return boost::json::serialize(JsonWriter::of(parts));
}

Result<std::vector<LogPart>> log_parts_from(std::string_view text) {
  return parse_json<std::vector<LogPart>>(text, "the answer about logs");
}

std::string_view last_lines(std::string_view text, int lines) {
  std::size_t begin = text.size();
  std::size_t end = text.ends_with('\n') ? text.size() - 1 : text.size();
  for (int i = 0; i < lines && begin > 0; ++i) {
    const std::size_t previous = end == 0 ? std::string_view::npos : text.rfind('\n', end - 1);
    begin = previous == std::string_view::npos ? 0 : previous + 1;
    end = previous == std::string_view::npos ? 0 : previous;
  }
  return text.substr(begin);
}

std::size_t overwritten_in(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  return line.rfind('\r') + 1;  // npos + 1 is 0
}

std::string_view whole_lines(std::string_view text, bool must_be_all) {
  const std::size_t end = text.rfind('\n');
  return must_be_all ? text : text.substr(0, end + 1);  // npos + 1 is 0
}

}  // namespace ddprun::agent
