#include "agent/query/log_query.h"

#include <algorithm>
#include <array>

#include "agent/status/status_json.h"

namespace ddprun::agent {
namespace {

using namespace status_json;

constexpr std::array<std::string_view, 2> kStreams{"stdout", "stderr"};
constexpr std::array<std::string_view, 3> kSources{"file", "recent", "elsewhere"};
constexpr std::size_t kAll = SIZE_MAX / 2;

json::value whole_text(std::string_view bytes) { return json_text(bytes, kAll); }

json::object place_object(const LogPlace& place) {
  return {{"rank", place.rank},
          {"stream", text(kStreams[static_cast<std::size_t>(place.stream)])},
          {"round", place.round},
          {"at", place.at}};
}

LogPlace place_from(const json::value& value) {
  const Reader from(value);
  return {from.number<int>("rank"), from.one_of<Stream>(kStreams, "stream"),
          from.number<std::uint64_t>("round"), from.number<std::uint64_t>("at")};
}

}  // namespace

std::string to_json(const LogQuery& question) {
  json::array places;
  for (const LogPlace& place : question.places) places.push_back(place_object(place));
  return json::serialize(
      json::object{{"ask", "log"},
                   {"ranks", json::array(question.ranks.begin(), question.ranks.end())},
                   {"lines", question.lines},
                   {"is_final", question.is_final},
                   {"places", std::move(places)}});
}

Result<LogQuery> log_query_from(std::string_view text) {
  return parse_status(text, "the question for logs", [](const json::value& value) {
    const Reader from(value);
    LogQuery question;
    for (const json::value& rank : from.list("ranks")) {
      question.ranks.push_back(rank.to_number<int>());
    }
    question.lines = std::clamp(from.number<int>("lines"), 0, LogQuery::kLinesMax);
    question.is_final = from.truth("is_final");
    for (const json::value& place : from.list("places")) {
      question.places.push_back(place_from(place));
    }
    return question;
  });
}

std::string to_json(const std::vector<LogPart>& parts) {
  json::array array;
  for (const LogPart& part : parts) {
    json::object object = place_object(part.next);
    object["host"] = text(part.host);
    object["source"] = text(kSources[static_cast<std::size_t>(part.source)]);
    object["file"] = text(part.file);
    object["text"] = whole_text(part.text);
    object["missed"] = part.missed;
    object["trouble"] = text(part.trouble);
    array.push_back(std::move(object));
  }
  return json::serialize(array);
}

Result<std::vector<LogPart>> log_parts_from(std::string_view text) {
  return parse_status(text, "the answer about logs", [](const json::value& value) {
    std::vector<LogPart> parts;
    for (const json::value& each : value.as_array()) {
      const Reader from(each);
      LogPart part;
      part.next = place_from(each);
      part.host = from.text("host");
      part.source = from.one_of<LogPart::Source>(kSources, "source");
      part.file = from.text("file");
      part.text = from.text("text");
      part.missed = from.number<std::uint64_t>("missed");
      part.trouble = from.text("trouble");
      parts.push_back(std::move(part));
    }
    return parts;
  });
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

std::string_view whole_lines(std::string_view text, bool must_be_all) {
  const std::size_t end = text.rfind('\n');
  return must_be_all || end == std::string_view::npos ? (must_be_all ? text : text.substr(0, 0))
                                                      : text.substr(0, end + 1);
}

}  // namespace ddprun::agent
