#include "rendezvous/etcd/job_record.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <limits>
#include <utility>

#include "rendezvous/common/base64.h"
#include "rendezvous/common/endpoint.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv {
namespace {

namespace json = boost::json;

constexpr std::int64_t kFormat = 1;
constexpr std::size_t kIncarnationBytes = 64;
constexpr std::size_t kFrameLengthBytes = 4;
constexpr std::array kKinds{"succeeded", "failed", "stopped", "cannot run"};  // JobOutcome::Kind

// The outcome in the round protocol's encoding, which enforces all limits. Only nodes that lose
// their leader at the very end of the job need it, so it has no consequences.
std::string bytes_of(JobOutcome outcome) {
  constexpr int kMost = std::numeric_limits<int>::max() / 2;  // a limit on numbers from etcd
  outcome.consequences_left_out = std::min(outcome.consequences_left_out, kMost) +
                                  static_cast<int>(outcome.consequences.size());
  outcome.consequences.clear();
  return wire::encode(wire::LeaderFrame(wire::Message<ToAgent>{0, 0, JobEnd{std::move(outcome)}}));
}

std::optional<JobOutcome> outcome_in(std::string_view bytes) {
  if (bytes.size() < kFrameLengthBytes) return std::nullopt;
  auto frame = wire::decode_leader_frame(bytes.substr(kFrameLengthBytes));
  auto* message = frame ? std::get_if<wire::Message<ToAgent>>(&*frame) : nullptr;
  auto* end = message == nullptr ? nullptr : std::get_if<JobEnd>(&message->body);
  if (end == nullptr) return std::nullopt;
  return std::move(end->outcome);
}

Result<json::object> object_of(std::string_view text) {
  boost::system::error_code ec;
  json::value value = json::parse(text, ec);
  const auto foreign = [](const std::string& what) { return fail(ErrorCode::kDataLoss, what); };
  if (ec || !value.is_object()) return foreign("it is no JSON object");
  json::object& object = value.as_object();
  const json::value* format = object.if_contains("ddprun");
  if (format == nullptr || !format->is_int64()) return foreign("it is not ddprun's");
  if (format->as_int64() != kFormat) {
    return foreign("it is of another version of ddprun; run one version on all nodes");
  }
  return std::move(object);
}

// The field, if it is a text.
std::optional<std::string> text_in(const json::object& object, std::string_view name) {
  const json::value* field = object.if_contains(name);
  if (field == nullptr || !field->is_string()) return std::nullopt;
  return std::string(field->as_string().data(), field->as_string().size());
}

// Whether the field is a number that an int can hold, and not negative; reads it.
bool reads_count(const json::object& object, std::string_view name, int& count) {
  const json::value* field = object.if_contains(name);
  const auto* number = field == nullptr ? nullptr : field->if_int64();
  if (number == nullptr || *number < 0 || *number > std::numeric_limits<int>::max()) return false;
  count = static_cast<int>(*number);
  return true;
}

// Nothing: it is not ours.
std::optional<LeftOutHost> left_out_in(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) return std::nullopt;
  auto host = text_in(*object, "host");
  auto address = text_in(*object, "address");
  auto why = text_in(*object, "why");
  int cause = 0;
  const bool is_cause = reads_count(*object, "cause", cause) &&
                        cause <= static_cast<int>(LeftOutHost::Cause::kFailures);
  if (!host || !address || !why || !is_cause) return std::nullopt;
  return LeftOutHost{{std::move(*host), std::move(*address)},
                     static_cast<LeftOutHost::Cause>(cause),
                     std::move(*why)};
}

// An older ddprun writes none.
bool reads_left_out(const json::object& object, std::vector<LeftOutHost>& hosts) {
  const json::value* list = object.if_contains("left_out");
  if (list == nullptr) return true;
  if (!list->is_array() || list->get_array().size() > LeftOutHosts::kReasonsMax) return false;
  for (const json::value& each : list->get_array()) {
    auto host = left_out_in(each);
    if (!host) return false;
    hosts.push_back(std::move(*host));
  }
  return true;
}

tl::unexpected<Error> incomplete() {
  return fail(ErrorCode::kDataLoss, "a field of it is missing or wrong");
}

}  // namespace

std::string to_text(const JobRecord& record) {
  json::object object{{"ddprun", kFormat}, {"incarnation", record.incarnation}};
  if (record.round) object["round"] = number(*record.round);
  object["nodes"] = record.nodes;
  object["restarts"] = record.history.restarts;
  object["quick_failures"] = record.history.quick_failures;
  object["quick_losses"] = record.history.quick_losses;
  object["without_progress"] = record.history.without_progress;
  if (record.history.step) {
    object["step"] = *record.history.step;
    object["step_kind"] = static_cast<int>(record.history.step_kind);
  }
  json::array left_out;
  for (const LeftOutHost& each : record.left_out) {
    left_out.push_back({{"host", each.name.host},
                        {"address", each.name.address},
                        {"cause", static_cast<int>(each.cause)},
                        {"why", each.why}});
  }
  if (!left_out.empty()) object["left_out"] = std::move(left_out);
  if (record.outcome) {
    object["outcome"] = to_base64(bytes_of(*record.outcome));
    object["ended"] = kKinds[static_cast<std::size_t>(record.outcome->kind)];  // for users
  }
  return json::serialize(object);
}

Result<JobRecord> read_job_record(std::string_view bytes) {
  const auto object = object_of(bytes);
  if (!object) return fail(object.error());
  JobRecord record;
  const auto incarnation = text_in(*object, "incarnation");
  if (!incarnation || incarnation->empty() || incarnation->size() > kIncarnationBytes ||
      !reads_count(*object, "nodes", record.nodes) ||
      !reads_count(*object, "restarts", record.history.restarts) ||
      !reads_count(*object, "quick_failures", record.history.quick_failures) ||
      !reads_count(*object, "quick_losses", record.history.quick_losses)) {
    return incomplete();
  }
  // An older ddprun writes none of these.
  if (object->contains("without_progress") &&
      !reads_count(*object, "without_progress", record.history.without_progress)) {
    return incomplete();
  }
  if (const json::value* step = object->if_contains("step")) {
    int kind = 0;
    const bool is_kind =
        reads_count(*object, "step_kind", kind) && kind < static_cast<int>(StepKind::kCounted);
    if (!step->is_int64() || !is_kind) return incomplete();
    record.history.step = step->as_int64();
    record.history.step_kind = static_cast<StepKind>(kind);
  }
  if (record.history.without_progress > 0 && !record.history.step) return incomplete();
  if (!reads_left_out(*object, record.left_out)) return incomplete();
  record.incarnation = *incarnation;
  if (object->contains("round")) {
    int round = 0;
    if (!reads_count(*object, "round", round)) return incomplete();
    record.round = Round{static_cast<std::uint32_t>(round)};
  }
  if (const auto outcome = text_in(*object, "outcome")) {
    const auto decoded = from_base64(*outcome);
    record.outcome = decoded ? outcome_in(*decoded) : std::nullopt;
    if (!record.outcome) return incomplete();
  }
  return record;
}

std::string to_text(const LeaderKey& key) {
  return json::serialize(json::object{{"ddprun", kFormat},
                                      {"leadership", key.leadership},
                                      {"incarnation", key.incarnation},
                                      {"address", key.address}});
}

Result<LeaderKey> read_leader_key(std::string_view bytes, std::int64_t revision) {
  const auto object = object_of(bytes);
  if (!object) return fail(object.error());
  const auto leadership = text_in(*object, "leadership");
  const auto incarnation = text_in(*object, "incarnation");
  const auto address = text_in(*object, "address");
  if (!leadership || !incarnation || incarnation->empty() || !address) return incomplete();
  const auto endpoint = parse_endpoint(*address);
  if (!endpoint || endpoint->port == 0) return incomplete();
  return LeaderKey{*leadership, *incarnation, *address, revision};
}

}  // namespace ddprun::rdzv
