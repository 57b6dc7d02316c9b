#include "agent/query/hang_query.h"

#include "agent/text/json_fields.h"
#include "rendezvous/common/limits.h"

namespace ddprun::agent {

static void fields(auto& json, Is<EndHung> auto& question) {
  json.constant("ask", "end_hung");
  json("round", question.round);
  json("ranks", question.ranks);
  json("why", Whole{question.why});
  json("stack", Whole{question.stack});
}

static void fields(auto& json, Is<EndHungAnswer> auto& answer) {
  json("here", answer.here);
  json("refused", answer.refused);
}

std::string to_json(EndHung question) {
  for (;;) {
    std::string text = boost::json::serialize(JsonWriter::of(question));
    if (text.size() <= rdzv::limits::kMaxQuestionBytes) return text;
    std::string& cut = question.stack.empty() ? question.why : question.stack;
    cut.resize(cut.size() / 2);
  }
}

Result<EndHung> end_hung_from(std::string_view text) {
  return parse_json<EndHung>(text, "the request to end a rank that hangs");
}

std::string to_json(const EndHungAnswer& answer) {
  return boost::json::serialize(JsonWriter::of(answer));
}

Result<EndHungAnswer> end_hung_answer_from(std::string_view text) {
  return parse_json<EndHungAnswer>(text, "the answer about a rank that hangs");
}

}  // namespace ddprun::agent
