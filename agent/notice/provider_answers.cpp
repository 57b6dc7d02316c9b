#include "agent/notice/provider_answers.h"

#include <strings.h>
#include <time.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/must_hold.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/time_text.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;
using From = NoticeSpec::From;
using TimePoint = std::chrono::system_clock::time_point;

constexpr std::size_t kWordBytesMax = 1024;
constexpr std::size_t kSentenceBytesMax = 500;
constexpr std::size_t kQuotedBytesMax = 100;
constexpr const char* kSecondsOfToken = "21600";  // the longest that there is
constexpr int kFirstAnswerOfAzure = 24;           // questions in two minutes
constexpr int kCannotExecute = 126;               // a shell's
constexpr int kNotFound = 127;

// Without white space around it; empty: it is no single word that can stand in a header and in a line.
std::string word_in(std::string_view text) {
  const std::string_view word = trimmed(text);
  const bool is_one = word.size() <= kWordBytesMax &&
                      std::ranges::all_of(word, [](char c) { return c > ' ' && c < '\x7f'; });
  return is_one ? std::string(word) : "";
}

std::string word_in(const rdzv::HttpReply& reply) {
  return reply.status == 200 ? word_in(reply.body) : "";
}

// A whole text that strptime reads as a time of UTC.
std::optional<TimePoint> time_in(const std::string& text, const char* format) {
  std::tm fields{};
  const char* const end = ::strptime(text.c_str(), format, &fields);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::chrono::system_clock::from_time_t(::timegm(&fields));
}

// Empty: there is no such text.
std::string text_of(const json::object& object, std::string_view name) {
  const json::value* const field = object.if_contains(name);
  return field != nullptr && field->is_string() ? std::string(field->get_string()) : "";
}

// None: it is no JSON object.
std::optional<json::object> object_in(const std::string& body) {
  boost::system::error_code ec;
  json::value root = json::parse(body, ec);
  if (ec || !root.is_object()) return std::nullopt;
  return std::move(root.get_object());
}

// Azure's names differ in nothing but case.
bool names(const json::value* resources, const std::string& instance) {
  if (resources == nullptr || !resources->is_array()) return false;
  return std::ranges::any_of(resources->get_array(), [&](const json::value& each) {
    return each.is_string() && ::strcasecmp(each.get_string().c_str(), instance.c_str()) == 0;
  });
}

// Empty: it is none of those that AWS documents.
std::string verb_of(std::string_view action) {
  constexpr std::pair<std::string_view, const char*> kVerbs[] = {
      {"terminate", "terminated"}, {"stop", "stopped"}, {"hibernate", "hibernated"}};
  for (const auto& [name, verb] : kVerbs) {
    if (name == action) return verb;
  }
  return "";
}

}  // namespace

std::string in_words(const Notice& notice, TimePoint now) {
  std::string text = notice.source + " " + notice.sentence;
  if (!notice.at) return text;
  const auto left = std::chrono::ceil<std::chrono::seconds>(*notice.at - now);
  return text + (left.count() > 0 ? " (in " + duration_text(left) + ")" : " (now)");
}

// ---- the requests

rdzv::HttpRequest MetadataTalk::begin() {
  must_hold(provider_ != From::kNowhere && provider_ != From::kCommand,
            "a metadata service is asked only of a cloud");
  if (provider_ == From::kAws && token_.empty()) return ask(Step::kToken);
  return ask(first_question());
}

// After the token.
MetadataTalk::Step MetadataTalk::first_question() const {
  if (!has_asked_instance_) return Step::kInstance;
  if (provider_ == From::kAws) return Step::kAction;
  return provider_ == From::kGcp ? Step::kPreempted : Step::kEvents;
}

rdzv::HttpRequest MetadataTalk::ask(Step step) {
  step_ = step;
  asked_ = {.method = "GET"};
  const std::string aws = "/latest/meta-data/";
  const std::string gcp = "/computeMetadata/v1/instance/";
  switch (provider_) {
    case From::kAws:
      if (step == Step::kToken) {
        asked_ = {.method = "PUT",
                  .target = "/latest/api/token",
                  .headers = {{"X-aws-ec2-metadata-token-ttl-seconds", kSecondsOfToken}}};
        break;
      }
      asked_.target = aws + (step == Step::kInstance ? "instance-id" : "spot/instance-action");
      asked_.headers = {{"X-aws-ec2-metadata-token", token_}};
      break;
    case From::kGcp:
      asked_.target = gcp + (step == Step::kInstance    ? "name"
                             : step == Step::kPreempted ? "preempted"
                                                        : "maintenance-event");
      asked_.headers = {{"Metadata-Flavor", "Google"}};
      break;
    default:
      asked_.target = step == Step::kInstance
                          ? "/metadata/instance/compute/name?api-version=2020-06-01&format=text"
                          : "/metadata/scheduledevents?api-version=2020-07-01";
      asked_.headers = {{"Metadata", "true"}};
  }
  return asked_;
}

// ---- the answers

MetadataTalk::Next MetadataTalk::on_reply(const rdzv::HttpReply& reply) {
  switch (step_) {
    case Step::kToken:
      return on_token(reply);
    case Step::kInstance:
      return on_instance(reply);
    case Step::kAction:
      return on_action(reply);
    case Step::kPreempted:
      return on_preempted(reply);
    case Step::kMaintenance:
      return on_maintenance(reply);
    case Step::kEvents:
      return on_events(reply);
  }
  return unclear(reply);
}

MetadataTalk::Next MetadataTalk::unclear(const rdzv::HttpReply& reply) const {
  const std::string text = as_utf8(trimmed(reply.body), kQuotedBytesMax);
  return Unclear{"it answers " + std::to_string(reply.status) +
                 (reply.status == 200 ? " '" + text + "'" : "") + " to " + asked_.method + " " +
                 asked_.target};
}

MetadataTalk::Next MetadataTalk::on_token(const rdzv::HttpReply& reply) {
  token_ = word_in(reply);
  if (token_.empty()) return unclear(reply);
  return ask(first_question());
}

MetadataTalk::Next MetadataTalk::on_instance(const rdzv::HttpReply& reply) {
  instance_ = word_in(reply);
  if (provider_ == From::kAzure && instance_.empty()) return unclear(reply);
  has_asked_instance_ = true;
  return ask(first_question());
}

MetadataTalk::Next MetadataTalk::on_action(const rdzv::HttpReply& reply) {
  if (reply.status == 404) return NoNotice{};
  if (reply.status == 401) {
    token_.clear();
    return NoNotice{};
  }
  const auto action = reply.status == 200 ? object_in(reply.body) : std::nullopt;
  const std::string verb = action ? verb_of(text_of(*action, "action")) : "";
  if (verb.empty()) return unclear(reply);
  return notice(verb, time_in(text_of(*action, "time"), "%Y-%m-%dT%H:%M:%SZ"));
}

MetadataTalk::Next MetadataTalk::on_preempted(const rdzv::HttpReply& reply) {
  const std::string word = word_in(reply);
  if (word == "TRUE") return notice("preempted within 30 s");
  if (word == "FALSE") return ask(Step::kMaintenance);
  return unclear(reply);
}

MetadataTalk::Next MetadataTalk::on_maintenance(const rdzv::HttpReply& reply) {
  const std::string word = word_in(reply);
  if (word == "TERMINATE_ON_HOST_MAINTENANCE") {
    return notice("terminated for the maintenance of its host");
  }
  if (word.empty()) return unclear(reply);
  return NoNotice{};
}

MetadataTalk::Next MetadataTalk::on_events(const rdzv::HttpReply& reply) {
  const auto document = reply.status == 200 ? object_in(reply.body) : std::nullopt;
  const json::value* const events = document ? document->if_contains("Events") : nullptr;
  if (events == nullptr || !events->is_array()) return unclear(reply);
  for (const json::value& each : events->get_array()) {
    if (!each.is_object()) continue;
    const json::object& event = each.get_object();
    const std::string type = text_of(event, "EventType");
    if (type != "Preempt" && type != "Terminate") continue;
    if (!names(event.if_contains("Resources"), instance_)) continue;
    // Empty once it has begun.
    return notice(type == "Preempt" ? "preempted" : "terminated",
                  time_in(text_of(event, "NotBefore"), "%a, %d %b %Y %H:%M:%S GMT"));
  }
  return NoNotice{};
}

Notice MetadataTalk::notice(const std::string& verb, std::optional<TimePoint> at) const {
  const std::string instance = instance_.empty() ? "this instance" : "instance " + instance_;
  const std::string when = at ? " at " + time_text("%FT%TZ", *at, &::gmtime_r) : "";
  return {"the metadata service says that", instance_, instance + " is " + verb + when, at};
}

// ---- a command

Answer answer_of_command(const ExitStatus& end, std::string_view output) {
  if (!end.is_success()) {
    const bool is_missing =
        end.signal == 0 && (end.code == kCannotExecute || end.code == kNotFound);
    if (!is_missing) return NoNotice{};
    return Unclear{"it cannot be executed (exit code " + std::to_string(end.code) + ")"};
  }
  const std::string_view line = trimmed(output.substr(0, output.find('\n')));
  if (line.empty()) {
    return Unclear{
        "its exit code is 0, but it says nothing; the first line on stdout must say what happens"};
  }
  return Notice{"the command of --preempt-notice says:", "", as_utf8(line, kSentenceBytesMax)};
}

int patience(From from) { return from == From::kAzure ? kFirstAnswerOfAzure : 1; }

}  // namespace ddprun::agent
